"""RemoteReader against an HTTP server with faults and an in-memory file system: right bytes, or a failure in time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import numpy as np
import pytest

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.fetch.local import LocalReader
from gpuload.fetch.reader import reader_for
from gpuload.fetch.remote import RemoteReader

ROOT = Path(__file__).parents[2]
DATA = {f"/{n}.bin": np.random.default_rng(n).integers(0, 256, 5000 + n, np.uint8).tobytes() for n in range(3)}


class Server(ThreadingHTTPServer):
    """Serves DATA with ranges. faults: what the next requests meet instead, one each: a status, "short" or "hang"."""

    daemon_threads = True
    ignores_ranges = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list = []
        self.requests: list[str] = []
        self.flying = self.most_flying = 0
        self.lock = threading.Lock()
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        with server.lock:
            server.requests.append(self.headers.get("Range", "all"))
            server.flying += 1
            server.most_flying = max(server.most_flying, server.flying)
            fault = server.faults.pop(0) if server.faults else None
        time.sleep(0.003)
        with server.lock:  # before the answer, after which the client may already ask for more
            server.flying -= 1
        self.answer(fault)

    def answer(self, fault):
        data = DATA.get(self.path.partition("?")[0])
        if fault == "hang":
            self.server.released.wait(20)
            return
        if isinstance(fault, int) or data is None:
            self.send_error(fault if data is not None else 404)
            return
        status, part = 200, data
        if "Range" in self.headers and not self.server.ignores_ranges:
            begin, end = (int(x) for x in self.headers["Range"].removeprefix("bytes=").split("-"))
            if begin >= len(data):
                self.send_error(416)
                return
            status, part = 206, data[begin : end + 1]
        if fault == "short":
            part = part[: len(part) // 2]
        self.send_response(status)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture
def server():
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp: remote reads go untested here")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def reader():
    readers = []

    def make(**limits):
        readers.append(RemoteReader(**{"backoff_s": 0.01, "timeout_s": 5.0, **limits}))
        return readers[-1]

    yield make
    for made in readers:
        made.close()


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    for path, data in DATA.items():
        system.pipe_file(path, data)
    yield [f"memory:/{path}" for path in DATA]
    system.rm("/", recursive=True)


def rows(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    refs = np.zeros(n, SAMPLE_REF)
    refs["file"], refs["offset"], refs["length"] = (
        rng.integers(3, size=n),
        rng.integers(4000, size=n),
        1 + rng.integers(900, size=n),
    )
    return refs


def assert_rows(encoded, refs, without=()):
    contents = list(DATA.values())
    for row, (file, offset, length) in enumerate(refs.tolist()):
        if row not in without:
            whole = contents[file]
            assert encoded.encoded(row).tobytes() == (whole if length < 0 else whole[offset : offset + length])


def urls(server) -> list[str]:
    return [server.url + path for path in DATA]


def test_ranges_and_whole_files_over_http(server, reader):
    refs = np.concatenate([rows(40), whole_files(np.array([2, 0]))])
    encoded = reader(gap_bytes=50, max_range_bytes=1500).read(urls(server), refs)
    assert not encoded.failures
    assert_rows(encoded, refs)
    assert sum(request == "all" for request in server.requests) == 2


def test_a_file_system_without_asyncio_is_read_from_threads(memory, reader):
    refs = np.concatenate([rows(40), whole_files(np.array([1]))])
    encoded = reader(threads=2).read(memory, refs)
    assert not encoded.failures
    assert_rows(encoded, refs)


def test_neighbours_are_one_request(server, reader):
    refs = np.array([(0, 100 * i, 90) for i in range(20)], SAMPLE_REF)
    assert_rows(reader().read(urls(server), refs), refs)
    assert server.requests == ["bytes=0-1989"]


@pytest.mark.parametrize("fault", [500, 503, 429, "short"])
def test_what_passes_is_asked_again(server, reader, fault):
    server.faults = [fault, fault]
    refs = np.array([(0, 10, 100)], SAMPLE_REF)
    assert_rows(reader().read(urls(server), refs), refs)
    assert len(server.requests) == 3


def test_what_stays_wrong_is_not_asked_again_and_costs_no_neighbour(server, reader):
    files = [*urls(server), server.url + "/gone.bin"]
    refs = np.array([(3, 0, 10), (0, 0, 10), (3, 0, -1), (1, 99999, 5)], SAMPLE_REF)
    encoded = reader().read(files, refs)
    assert sorted(encoded.failures) == [0, 2, 3]
    assert isinstance(encoded.failures[0], FileNotFoundError) and isinstance(encoded.failures[2], FileNotFoundError)
    assert isinstance(encoded.failures[3], OSError) and encoded.lengths.tolist() == [0, 10, 0, 0]
    assert_rows(encoded, refs, without=(0, 2, 3))
    assert len(server.requests) == 4


def test_attempts_end(server, reader):
    server.faults = [500] * 50
    encoded = reader(attempts=3).read(urls(server), np.array([(0, 0, 10)], SAMPLE_REF))
    assert isinstance(encoded.failures[0], OSError) and "500" in str(encoded.failures[0])
    assert len(server.requests) == 3


def test_a_file_that_is_shorter_than_its_index_fails_only_rows_beyond_its_end(server, memory, reader):
    refs = np.array([(0, 4900, 50), (0, 4960, 50), (0, 4990, 10)], SAMPLE_REF)
    for files in (urls(server), memory):
        encoded = reader(attempts=2).read(files, refs)
        assert list(encoded.failures) == [1] and "ends at byte 5000" in str(encoded.failures[1])
        assert_rows(encoded, refs, without=(1,))


def test_a_server_that_never_answers_fails_its_rows_in_time(server, reader):
    server.faults = ["hang", "hang"]
    encoded = reader(timeout_s=0.2, attempts=2).read(urls(server), np.array([(0, 0, 10)], SAMPLE_REF))
    assert isinstance(encoded.failures[0], TimeoutError)
    assert "no answer within 0.2 s, 2 times" in str(encoded.failures[0])


def test_a_server_that_ignores_ranges_is_named(server, reader):
    server.ignores_ranges = True
    encoded = reader().read(urls(server), np.array([(0, 5, 10)], SAMPLE_REF))
    assert "ignores ranges" in str(encoded.failures[0]) and len(server.requests) == 1


def test_what_is_in_flight_is_bounded(server, reader):
    refs = np.array([(0, 100 * i, 10) for i in range(40)], SAMPLE_REF)
    assert_rows(reader(gap_bytes=0, max_ranges=3).read(urls(server), refs), refs)
    assert server.most_flying <= 3 and len(server.requests) == 40
    server.most_flying = 0
    assert_rows(reader(gap_bytes=0, max_bytes=25).read(urls(server), refs), refs)
    assert server.most_flying <= 2
    assert_rows(reader(gap_bytes=0, max_bytes=5).read(urls(server), refs[:3]), refs[:3])


def test_whole_files_in_flight_are_bounded_by_bytes(server, reader):
    bounded = reader(max_bytes=11_000)  # two of these files
    refs = whole_files(np.array([0, 1, 2] * 8))
    assert_rows(bounded.read(urls(server), refs[:1]), refs[:1])
    assert_rows(bounded.read(urls(server), refs), refs)
    assert server.most_flying == 2 and len(server.requests) == 25
    server.most_flying = 0
    refs = whole_files(np.array([0, 1, 2] * 3))
    assert_rows(reader(max_bytes=10).read(urls(server), refs), refs)  # each is larger than all that may fly
    assert server.most_flying <= 10


@pytest.mark.parametrize("path", ["/gone.bin", "/0.bin"])
def test_what_failed_is_named_without_its_signature(server, reader, path):
    server.faults = [403] if path == "/0.bin" else []
    encoded = reader().read([f"{server.url}{path}?X-Signature=secret"], np.array([(0, 0, 10)], SAMPLE_REF))
    assert path in str(encoded.failures[0]) and "secret" not in repr(encoded.failures[0])
    assert encoded.failures[0].__cause__ is None or "secret" not in repr(encoded.failures[0].__cause__)


LEFT_OPEN = """
import sys, numpy as np
from gpuload.core.refs import SAMPLE_REF
from gpuload.fetch.remote import RemoteReader
reader = RemoteReader()
encoded = reader.read([sys.argv[1]], np.array([(0, 0, 10)], SAMPLE_REF))
assert not encoded.failures
if sys.argv[2] == "forgotten":
    import gc, threading
    thread = reader._events.thread
    del reader
    gc.collect()
    assert not thread.is_alive()
"""


@pytest.mark.parametrize("how", ["forgotten", "open at exit"])
def test_a_reader_that_nobody_closed_ends_without_noise(server, how):
    command = [sys.executable, "-W", "default::ResourceWarning", "-c", LEFT_OPEN, urls(server)[0], how]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


def test_close_stops_a_read_that_is_under_way(server):
    server.faults = ["hang"] * 4
    reader, raised = RemoteReader(), []

    def read():
        try:
            reader.read(urls(server), np.array([(0, 0, 10)], SAMPLE_REF))
        except RuntimeError as error:
            raised.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while not server.requests:
        time.sleep(0.005)
    reader.close()
    reader.close()
    thread.join(5)
    assert not thread.is_alive() and "closed" in str(raised[0])
    assert not any(
        t.name == "gpuload-fetch" and t.is_alive() and t is reader._events.thread for t in threading.enumerate()
    )
    with pytest.raises(RuntimeError, match="closed"):
        reader.read([], np.zeros(0, SAMPLE_REF))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_reads_with_a_new_reader(server, reader):
    refs = rows(10)
    parent = reader()
    parent.read(urls(server), refs)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            parent.close()
            child = RemoteReader()
            assert_rows(child.read(urls(server), refs), refs)
            child.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert_rows(parent.read(urls(server), refs), refs)


def test_reader_for_picks_by_where_the_files_are(memory):
    for files, kind in [(["/a", "file:///b"], LocalReader), (memory, RemoteReader), (["/a", *memory], RemoteReader)]:
        reader = reader_for(files)
        assert type(reader) is kind
        reader.close()
