"""S3 by signed URLs, against rclone's server: what they read, when s3fs reads instead, and what is said of it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuload.core.refs import SAMPLE_REF, whole_files
from gpuload.fetch.remote import RemoteReader
from gpuload.fetch.s3_files import REFUSALS, S3Files
from tests.servers.start import Storage, s3

pytestmark = pytest.mark.full

NAMES = ["a.bin", "b c+d%20&é.bin", "deep/er/#1?.bin"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "bucket"
    for number, name in enumerate(NAMES):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(np.random.default_rng(number).bytes(100_000 + number))
    return folder


@pytest.fixture(scope="module")
def storage(folder: Path) -> Iterator[Storage]:
    with s3(folder) as storage:
        yield storage


@pytest.fixture
def read(folder: Path, storage: Storage):
    """Read ranges of all files, and each whole, with these options; compare; the failures."""

    def read(url: str = storage.url, **options) -> dict[int, BaseException]:
        reader = RemoteReader(storage_options={**storage.options, **options}, gap_bytes=0, backoff_s=0.001)
        urls = [f"{url}/{name}" for name in NAMES]
        ranges = [(file, at, 1000) for file in range(len(NAMES)) for at in (0, 5_000, 99_000)]
        failures = {}
        try:
            for refs in (np.array(ranges, SAMPLE_REF), whole_files(np.arange(len(NAMES)))):
                encoded = reader.read(urls, refs)
                failures.update(encoded.failures)
                for row in set(range(len(refs))) - set(encoded.failures):
                    file, at, length = refs[row].tolist()
                    data = (folder / NAMES[file]).read_bytes()
                    assert encoded.encoded(row).tobytes() == (data[at : at + length] if length >= 0 else data)
        finally:
            reader.close()
        return failures

    return read


def use_only(monkeypatch, *, signed: bool) -> None:
    async def never(*_: object):
        raise AssertionError("the other way was to be taken")
        yield b""

    monkeypatch.setattr(S3Files, "_by_s3fs" if signed else "_by_signed_url", never)


def test_objects_are_read_by_signed_urls(read, monkeypatch):
    use_only(monkeypatch, signed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not read()


def test_a_public_bucket_is_read_without_a_signature(folder, read, monkeypatch):
    use_only(monkeypatch, signed=True)
    with s3(folder, anonymous=True) as public:
        client = {"endpoint_url": f"http://127.0.0.1:{public.port}"}
        assert not read(anon=True, key=None, secret=None, client_kwargs=client)


@pytest.mark.parametrize(
    "options",
    [
        {"requester_pays": True},
        {"s3_additional_kwargs": {"ExpectedBucketOwner": "1"}},
        {"config_kwargs": {"proxies": {}}},
    ],
)
def test_what_a_signed_url_cannot_say_is_left_to_s3fs(read, monkeypatch, options):
    use_only(monkeypatch, signed=False)
    assert not read(**options)


def test_the_users_own_signature_version_stays(read, monkeypatch):
    use_only(monkeypatch, signed=True)
    assert not read(config_kwargs={"signature_version": "s3v4", "max_pool_connections": 3})


def test_a_server_that_refuses_signed_urls_is_read_by_s3fs_and_named_once(read, monkeypatch):
    sign = S3Files._url

    async def wrongly(self, name):
        url = await sign(self, name)
        return url.with_query(str(url.raw_query_string).replace("X-Amz-Signature=", "X-Amz-Signature=0"))

    monkeypatch.setattr(S3Files, "_url", wrongly)
    with pytest.warns(UserWarning, match="refuses signed URLs") as told:
        assert not read()
    assert len(told) == 1 and "X-Amz" not in str(told[0].message) and len(NAMES) * 3 > REFUSALS


def test_errors_name_the_object_and_no_secret(storage):
    wrong = {**storage.options, "secret": "wrong-secret"}
    for options, name, kind in ((storage.options, "gone.bin", FileNotFoundError), (wrong, "a.bin", PermissionError)):
        reader = RemoteReader(storage_options=options, backoff_s=0.001)
        url = f"{storage.url}/{name}"
        failure = reader.read([url], np.array([(0, 0, 10)], SAMPLE_REF)).failures[0]
        reader.close()
        assert isinstance(failure, kind) and url in str(failure)
        for secret in ("Signature", "X-Amz", storage.options["secret"], "wrong-secret"):
            assert secret not in f"{failure!r} {failure} {failure.__cause__!r}"


def test_a_signature_that_ran_out_is_made_anew(folder, storage, monkeypatch):
    reader = RemoteReader(storage_options=storage.options, gap_bytes=0)
    url, refs = f"{storage.url}/a.bin", np.array([(0, 10, 10)], SAMPLE_REF)
    assert not reader.read([url], refs).failures
    files = reader._link.opened["s3"]
    (before,) = files._signed.values()
    files._signed = dict.fromkeys(
        files._signed, type(before)(before.url.with_query(before.url.raw_query_string + "0"), before.until_s)
    )
    assert reader.read([url], refs).encoded(0).tobytes() == (folder / "a.bin").read_bytes()[10:20]  # by s3fs
    use_only(monkeypatch, signed=True)
    assert not reader.read([url], refs).failures
    reader.close()


def test_a_forked_child_says_nothing_of_its_parents_connections(storage):
    program = """if True:
        import gc, os, sys
        import numpy as np
        from gpuload.core.refs import SAMPLE_REF
        from gpuload.fetch.remote import RemoteReader
        options = {"key": sys.argv[2], "secret": sys.argv[3], "client_kwargs": {"endpoint_url": sys.argv[4]}}
        reader = RemoteReader(storage_options=options)
        refs = np.array([(0, 0, 10)], SAMPLE_REF)
        assert not reader.read([sys.argv[1]], refs).failures
        child = os.fork()
        if not child:
            del reader
            gc.collect()
            new = RemoteReader(storage_options=options)
            assert not new.read([sys.argv[1]], refs).failures
            new.close()
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        assert not reader.read([sys.argv[1]], refs).failures
        reader.close()
    """
    options = storage.options
    given = [f"{storage.url}/a.bin", options["key"], options["secret"], options["client_kwargs"]["endpoint_url"]]
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
