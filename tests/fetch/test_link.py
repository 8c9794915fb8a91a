"""Requests that break, files that change: what came is not asked for again, another version is never mixed in."""

from __future__ import annotations

import errno
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.core.stamp import Stamp
from gpuload.fetch.remote import RemoteReader
from gpuload.fetch.remote_files import FileVersion
from tests.fetch.ranges import RangeServer

DATA = {"/a.bin": np.random.default_rng(1).integers(0, 256, 100_000, np.uint8).tobytes()}


@pytest.fixture
def server():
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp: remote reads go untested here")
    with RangeServer(DATA) as server:
        yield server


@pytest.fixture
def reader():
    readers = []

    def make(**how):
        readers.append(RemoteReader(**{"backoff_s": 0.001, "timeout_s": 5.0, **how}))
        return readers[-1]

    yield make
    for made in readers:
        made.close()


def refs(*rows: tuple[int, int]) -> np.ndarray:
    return np.array([(0, *row) for row in rows], SAMPLE_REF)


@pytest.mark.parametrize("whole", [False, True])
def test_a_broken_answer_goes_on_where_it_stopped(server, reader, whole):
    server.cut(lambda path, begin, end: end - begin > 20_000)
    wanted = whole_files(np.array([0])) if whole else refs((10_000, 90_000))
    encoded = reader(attempts=1).read(server.urls, wanted)
    assert not encoded.failures
    assert encoded.encoded(0).tobytes() == DATA["/a.bin"][0 if whole else 10_000 :]
    begins = [int(request.split()[1].split("-")[0]) for request in server.requests]
    assert len(begins) >= 3 and begins == sorted(set(begins))
    assert sum(server.sent.values()) < 2.2 * encoded.lengths[0]  # what the server counts includes what it cut


def test_a_server_that_sends_a_little_each_time_is_left_in_the_end(server, reader):
    server.cut(lambda path, begin, end: True)
    encoded = reader(attempts=2, resumptions=5).read(server.urls, refs((0, 90_000)))
    assert isinstance(encoded.failures[0], OSError) and len(server.requests) == 7


def test_a_file_that_is_replaced_while_it_is_read_is_an_error_that_says_so(server, reader):
    server.headers["ETag"] = '"one"'
    reading = reader()
    assert not reading.read(server.urls, refs((0, 100))).failures
    server.headers["ETag"] = '"two"'
    for _ in range(2):
        failure = reading.read(server.urls, refs((200, 100))).failures[0]
        assert isinstance(failure, OSError) and failure.errno == errno.ESTALE and "was replaced" in str(failure)
    assert len(server.requests) == 3


def test_a_file_of_another_size_than_it_was_indexed_with_is_one_too(server, reader):
    stamps = {server.urls[0]: Stamp(99_999, '"one"')}
    failure = reader(stamps=stamps).read(server.urls, refs((0, 100))).failures[0]
    assert isinstance(failure, OSError) and failure.errno == errno.ESTALE
    stamps = {server.urls[0]: Stamp(100_000, "whatever an index took")}
    assert not reader(stamps=stamps).read(server.urls, refs((0, 100))).failures


def test_a_file_of_another_version_than_it_was_indexed_with_is_one_too(server, reader):
    server.headers["ETag"] = '"two"'
    for stamp in (Stamp(100_000, '"one"'), Stamp(100_000, "one")):
        failure = reader(stamps={server.urls[0]: stamp}).read(server.urls, refs((0, 100))).failures[0]
        assert isinstance(failure, OSError) and failure.errno == errno.ESTALE
    server.requests.clear()
    for stamp in (Stamp(100_000, '"two"'), Stamp(100_000, "two"), Stamp(100_000, "")):
        assert not reader(stamps={server.urls[0]: stamp}).read(server.urls, refs((0, 100))).failures
    assert not [request for request in server.requests if request.startswith("HEAD")]


def test_a_version_that_a_server_calls_differently_each_time_is_asked_for_again(server, reader, monkeypatch):
    server.headers["ETag"] = '"of this machine"'
    known = Stamp(100_000, "of that machine")
    answers = iter([Stamp(100_000, '"of this machine"'), known])

    async def ask(self, url):
        return next(answers)

    monkeypatch.setattr("gpuload.fetch.link.Link._ask_stamp", ask)
    reading = reader(stamps={server.urls[0]: known})
    assert not reading.read(server.urls, refs((0, 100))).failures
    assert not reading.read(server.urls, refs((500, 100))).failures and next(answers, None) is None


def test_an_answer_of_another_size_is_another_version_whatever_the_server_says_when_asked(server, reader, monkeypatch):
    known = Stamp(100_001, "of that machine")

    async def ask(self, url):
        return known

    monkeypatch.setattr("gpuload.fetch.link.Link._ask_stamp", ask)
    server.headers["ETag"] = '"of this machine"'
    failure = reader(stamps={server.urls[0]: known}).read(server.urls, refs((0, 100))).failures[0]
    assert isinstance(failure, OSError) and failure.errno == errno.ESTALE


def test_an_answer_from_elsewhere_is_an_error_and_not_taken_for_what_was_asked(server, reader):
    server.shifted = 7
    failure = reader().read(server.urls, refs((10, 100))).failures[0]
    assert "begins at byte 17 where byte 10 was asked for" in str(failure) and len(server.requests) == 1


def test_a_whole_file_that_is_replaced_while_it_is_read_is_read_anew(server, reader):
    new = DATA["/a.bin"][::-1]

    def cut_once(path, begin, end):
        cut, server.headers["ETag"] = server.headers["ETag"] == '"one"', '"two"'
        server.files["/a.bin"] = new
        return cut

    server.headers["ETag"] = '"one"'
    server.cut(cut_once)
    encoded = reader().read(server.urls, whole_files(np.array([0])))
    assert encoded.encoded(0).tobytes() == new
    assert [request.split()[1].split("-")[0] for request in server.requests] == ["0", "50000", "0"]


@pytest.mark.parametrize("outer", [OSError, RuntimeError])
def test_what_a_failure_came_from_shows_no_secret(reader, monkeypatch, outer):
    """httpx's errors, which webdav4's came from, quote base_url."""
    hidden = "http://me:PASS@host"

    def cat_file(self, path, **_):
        try:
            raise ValueError(f"401 for url {hidden!r}")
        except ValueError as error:
            raise outer("401 for memory://b/a.bin") from error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", cat_file)
    failure = reader(attempts=1).read(["memory://b/a.bin"], refs((0, 10))).failures[0]
    text = "".join(traceback.format_exception(failure))
    assert isinstance(failure, OSError) and "memory://b/a.bin" in text and "PASS" not in text


def test_the_first_batch_has_the_link_to_itself(server, reader):
    server.hold(lambda path, begin, end: begin < 4000)
    reading = reader(gap_bytes=0)
    batches = [refs(*((4000 * i + 1000 * j, 10) for j in range(4))) for i in range(3)]
    files = server.urls
    expected = reading.expect(files, refs((50_000, 10), (50_010, 10)))
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(reading.read, files, batches[0])
        server.wait_for(4)
        others = [threads.submit(reading.read, files, batch) for batch in batches[1:]]
        time.sleep(0.05)
        assert len(server.requests) == 4
        server.release()
        for batch, came in zip(batches, [first, *others], strict=True):
            for row, (_, at, length) in enumerate(batch.tolist()):
                assert came.result().encoded(row).tobytes() == DATA["/a.bin"][at : at + length]
    server.wait_for(13)
    assert "/a.bin 50000-50020" in server.requests
    expected.drop()


def test_a_first_batch_that_fails_lets_the_others_begin(server, reader):
    server.fail(lambda path, begin, end: begin < 4000)
    reading = reader(attempts=1)
    assert list(reading.read(server.urls, refs((0, 10))).failures) == [0]
    assert not reading.read(server.urls, refs((5000, 10))).failures


def test_servers_that_share_their_work_may_disagree_about_etags():
    one, two = FileVersion(5, '"a"', "Mon"), FileVersion(5, '"b"', "Mon")
    assert not one.differs(two) and not one.differs(FileVersion(5)) and not one.differs(FileVersion())
    assert one.differs(FileVersion(6, '"a"', "Mon")) and one.differs(FileVersion(5, '"b"', "Tue"))
    assert one.differs(FileVersion(None, '"b"', "")) and not one.differs(FileVersion(None, "", "Mon"))


def test_sizes_are_asked_for_once_where_they_are_not_known(server, reader):
    server.headers["ETag"] = '"x"'
    assert reader().stamp(server.urls[0]) == Stamp(100_000, '"x"')
    known = {server.urls[0]: Stamp(1, "y")}
    assert reader(stamps=known).stamp(server.urls[0]) == Stamp(1, "y")
    assert server.requests == ["HEAD /a.bin"]
