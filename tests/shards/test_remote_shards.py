"""Shards behind HTTP: versions are told apart, what passes is asked again, what stays wrong is named with a cure."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import warnings
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuload.core.errors import ShardError
from gpuload.shards import urls as urls_module
from gpuload.shards.catalog import open_catalog
from gpuload.shards.urls import stamp
from gpuload.shards.write_tar import END, header, padding

ROOT = Path(__file__).parents[2]


class Server(ThreadingHTTPServer):
    """Serves `files` with ranges. headers: sent with each. faults: path -> statuses that the next requests meet."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.faults: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.hangs = False
        self.hanging, self.released = threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        server.requests.append(path)
        if server.hangs:
            server.hanging.set()
            server.released.wait(60)
            return
        faults = server.faults.get(path)
        data = server.files.get(path)
        if faults or data is None:
            self.send_error(faults.pop(0) if faults else 404)
            return
        status, part = 200, data
        if "Range" in self.headers:
            begin, end = (int(x) for x in self.headers["Range"].removeprefix("bytes=").split("-"))
            status, part = 206, data[begin : end + 1]
        self.send_response(status)
        for name, value in {"Content-Type": "application/x-tar", **server.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)


@pytest.fixture
def server(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp: remote shards go untested here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(urls_module, "BACKOFF_S", 0.001)
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def tar(labels) -> bytes:
    parts = []
    for i, label in enumerate(labels):
        for name, data in ((f"{i}.cls", str(label).encode()), (f"{i}.jpg", b"J" * 700)):
            parts.append(header(name, len(data)) + data + padding(len(data)))
    return b"".join(parts) + END


def open_labels(*urls: str) -> list[int]:
    return open_catalog(list(urls), format="tar", on_error="raise", options={}).table.labels.tolist()


@pytest.mark.parametrize("name", ["ETag", "etag", "Last-Modified", "LAST-MODIFIED", "Content-MD5", "Digest"])
def test_a_shard_replaced_by_one_of_the_same_size_is_indexed_again(server, name):
    for second, labels in enumerate(([1, 2], [7, 8])):
        server.files = {"/a.tar": tar(labels), "/b.tar": tar(labels)}
        server.headers = {name: formatdate(second, usegmt=True) if "mod" in name.lower() else f'"{second}"'}
        for _ in range(2):
            assert open_labels(f"{server.url}/a.tar", f"{server.url}/b.tar") == labels * 2
        assert stamp(f"{server.url}/a.tar", {}).version


def test_no_secret_of_a_url_is_kept_or_shown(server, tmp_path):
    no_image = header("0.cls", 1) + b"1" + padding(1) + END
    server.files = {"/a.tar": tar([1, 2]), "/b.tar": tar([3]), "/c.tar": no_image}
    server.headers = {"ETag": '"1"'}
    host = server.url.replace("://", "://me:secret@")
    urls = [f"{host}/a.tar?X-Amz-Signature=secret/secret", f"{host}/b.tar?sig=secret", f"{host}/c.tar?sig=secret"]
    for _ in range(2):
        found = open_catalog(urls, format="tar", on_error="skip", options={})
        assert found.table.labels.tolist() == [1, 2, 3] and list(found.table.files) == urls
        assert "c.tar" in repr(found.findings) and "secret" not in repr(found.findings)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert any(path.name.endswith(".manifest.gpuload") for path in kept)
    assert not [path for path in kept if b"secret" in path.read_bytes() or "secret" in path.name]


def test_a_shard_without_a_known_name_is_not_downloaded_to_see_whether_it_is_a_folder(server):
    server.files = {"/download": tar([1, 2])}
    server.headers = {"ETag": '"1"'}
    whole = []
    get = Handler.do_GET
    Handler.do_GET = lambda self: (whole.append("Range" not in self.headers and self.command == "GET"), get(self))
    try:
        for format in ("auto", "tar"):
            found = open_catalog(f"{server.url}/download?file=7", format=format, on_error="raise", options={})
            assert found.table.labels.tolist() == [1, 2]
    finally:
        Handler.do_GET = get
    assert whole and not any(whole)


def test_signed_urls_of_images_are_taken_for_images():
    urls = [f"https://host/{name}.jpg?X-Amz-Signature=x.tar" for name in "ab"]
    found = open_catalog(urls, format="auto", on_error="raise", options={})
    assert found.format == "images" and list(found.table.files) == urls


def test_without_any_version_no_index_is_trusted_and_that_is_said_once(server):
    for labels in ([1, 2], [7, 8]):
        server.files = {"/a.tar": tar(labels), "/b.tar": tar(labels)}
        with pytest.warns(UserWarning, match="neither etag nor modification time") as said:
            assert open_labels(f"{server.url}/a.tar?sig=secret", f"{server.url}/b.tar") == labels * 2
        assert len(said) == 1 and "1 more shards" in str(said[0].message) and "secret" not in str(said[0].message)
        with pytest.warns(UserWarning, match="indexed anew"):
            assert open_labels(f"{server.url}/a.tar") == labels


@pytest.mark.parametrize("status", [500, 503, 429])
def test_what_passes_is_asked_again(server, status):
    server.files, server.headers = {"/a.tar": tar([3])}, {"ETag": "1"}
    server.faults = {"/a.tar": [status] * 3, "/classes.json": [status]}
    assert open_labels(f"{server.url}/a.tar") == [3]
    assert not server.faults["/a.tar"] and server.requests.count("/classes.json") == 2


@pytest.mark.parametrize("status", [403, 401, 404])
def test_class_names_that_may_not_be_seen_are_absent(server, status):
    server.files, server.headers = {"/a.tar": tar([3])}, {"ETag": "1"}
    server.faults = {"/classes.json": [status]}
    assert open_catalog(f"{server.url}/a.tar", format="tar", on_error="raise", options={}).classes is None


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (403, "access is denied: 403 Forbidden. .*storage_options="),
        (404, "it does not exist. Check the path"),
        (503, "it cannot be read: 503 .*4 attempts.*. Check the address, the network and the server"),
    ],
)
@pytest.mark.parametrize("format", ["auto", "tar"])
def test_what_stays_wrong_says_what_where_and_cure_and_no_secret(server, status, problem, format):
    server.files, server.faults = {"/a.tar": tar([3])}, {"/a.tar": [status] * 99}
    url = f"{server.url}/a.tar?X-Signature=secret"
    with pytest.raises(ShardError, match=rf"shard {server.url}/a.tar\?\.\.\.: {problem}") as raised:
        open_catalog(url, format=format, on_error="raise", options={})
    error: BaseException | None = raised.value
    while error is not None:  # as a traceback shows it
        assert "secret" not in str(error)
        error = error.__cause__


def test_nobody_there_is_an_error_with_a_cure(server):
    server.shutdown()
    server.server_close()
    with pytest.raises(ShardError, match="cannot be read: .*attempts.*Check the address"):
        open_labels(f"{server.url}/a.tar")


def test_a_server_that_ignores_ranges_is_named(server, monkeypatch):
    server.files, server.headers = {"/a.tar": tar([3])}, {"ETag": "1"}
    monkeypatch.setattr("gpuload.shards.tar.REMOTE_WINDOW_BYTES", 600)
    monkeypatch.setattr(Handler, "do_GET", without_ranges(Handler.do_GET))
    with pytest.raises(ShardError, match="ignores ranges"):
        open_labels(f"{server.url}/a.tar")


def without_ranges(get):
    def do_get(self):
        del self.headers["Range"]
        get(self)

    return do_get


OPEN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born ignoring it
from gpuload.shards.manifest import open_manifest
print("opening", flush=True)
open_manifest(sys.argv[1:], {})
"""


def test_ctrl_c_ends_at_once_while_a_server_hangs(server):
    server.hangs = True
    urls = [f"{server.url}/{i}.tar" for i in range(3)]
    child = subprocess.Popen([sys.executable, "-c", OPEN, *urls], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert server.hanging.wait(60)
    child.send_signal(signal.SIGINT)
    try:
        _, said = child.communicate(timeout=20)  # the server holds its answers back for a minute
    finally:
        child.kill()
    assert "KeyboardInterrupt" in said and child.returncode != 0


READ = """
import sys
from gpuload import ShardDataset
dataset = ShardDataset(sys.argv[1])
assert len(dataset.get_encoded(0)[0].data) == 700
"""


def test_what_a_shard_is_called_is_enough_to_know_it_is_no_folder(server):
    """fsspec answers "is it a folder" over HTTP by downloading all of it: no request may ask for that."""
    server.files, server.headers = {"/a.tar": tar(range(9))}, {"ETag": "1"}
    whole: list[int] = []
    get = Handler.do_GET

    def watched(self):
        if "Range" not in self.headers and self.command == "GET" and self.path == "/a.tar":
            whole.append(1)
        get(self)

    for format in ("auto", "tar"):
        server.requests.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Handler, "do_GET", watched)
            open_catalog(f"{server.url}/a.tar", format=format, on_error="raise", options={})
        assert not whole and server.requests.count("/a.tar") <= 3  # its size, its first bytes, the rest


def test_the_sizes_of_many_shards_cost_one_listing(monkeypatch):
    import fsspec

    system = fsspec.filesystem("memory")
    calls = []

    def counted(name):
        real = getattr(type(system), name)

        def call(self, path, *more, **named):
            calls.append(name)
            return real(self, path, *more, **named)

        monkeypatch.setattr(type(system), name, call)

    counted("info")
    counted("ls")
    try:
        urls = [f"memory://many/{i}.tar" for i in range(urls_module.LISTED_FILES)]
        for number, url in enumerate(urls):
            system.pipe_file(url.removeprefix("memory:/"), b"x" * number)
        calls.clear()
        told = urls_module.stamps(urls, {})
        assert calls == ["ls"] and [one.size for one in told] == list(range(len(urls)))
        assert all(one.version for one in told)
        system.rm(urls[3].removeprefix("memory:/"))
        failed: list[ShardError] = []
        assert urls_module.stamps(urls, {}, failed=failed)[3] is None and len(failed) == 1
    finally:
        system.rm("/many", recursive=True)


def test_a_data_set_left_open_ends_without_noise(server):
    server.files, server.headers = {"/a.tar": tar([3])}, {"ETag": "1"}
    command = [sys.executable, "-c", READ, f"{server.url}/a.tar"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


def test_no_warning_where_versions_are_told(server):
    server.files, server.headers = {"/a.tar": tar([3])}, {"Last-Modified": formatdate(1, usegmt=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_labels(f"{server.url}/a.tar") == [3]


def uploaded(server: Server, folder: Path, **shards: bytes) -> list[str]:
    """Serve a local data set with what gpuload keeps beside it. URLs of its shards."""
    folder.mkdir()
    for name, data in shards.items():
        (folder / f"{name}.tar").write_bytes(data)
    open_labels(*(str(folder / f"{name}.tar") for name in shards))
    server.files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return [f"{server.url}/{name}.tar" for name in shards]


def asked_of(server: Server) -> list[str]:
    """Requests for shards and indexes."""
    return [path for path in server.requests if path != "/classes.json"]


def test_what_was_uploaded_with_the_shards_spares_reading_them(server, tmp_path):
    server.headers = {"ETag": '"1"'}
    urls = uploaded(server, tmp_path / "local", a=tar([3, 1]), b=tar([4]), c=tar([1, 5]))
    assert open_labels(*urls) == [3, 1, 4, 1, 5]
    manifest = next(path for path in server.files if path.endswith(".manifest.gpuload"))
    assert sorted(asked_of(server)) == sorted([manifest, "/a.tar", "/b.tar", "/c.tar"])  # those of the shards are HEADs
    server.requests.clear()
    assert open_labels(*urls) == [3, 1, 4, 1, 5] and manifest not in asked_of(server)  # it is here by now
    server.requests.clear()
    assert open_labels(*urls[:2]) == [3, 1, 4]  # no manifest is of these two: an index is of each
    assert {"/a.tar.gpuload", "/b.tar.gpuload"} < set(asked_of(server)) and len(asked_of(server)) == 5
    server.requests.clear()
    assert open_labels(urls[2]) == [1, 5] and asked_of(server) == ["/c.tar", "/c.tar.gpuload"]


def test_where_a_server_tells_no_versions_what_was_uploaded_is_read_each_time(server, tmp_path):
    urls = uploaded(server, tmp_path / "local", a=tar([3, 1]), b=tar([4]))
    for _ in range(2):
        server.requests.clear()
        with pytest.warns(UserWarning, match="no index can be kept"):
            assert open_labels(*urls) == [3, 1, 4]
        assert len(asked_of(server)) == 3


def test_an_uploaded_index_of_shards_of_another_size_is_not_believed(server, tmp_path):
    server.headers = {"ETag": '"1"'}
    urls = uploaded(server, tmp_path / "local", a=tar([3, 1]), b=tar([4]))
    server.files["/a.tar"] = tar([7, 8, 9])
    assert open_labels(*urls) == [7, 8, 9, 4]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"<html>not here</html>", lambda data: b""])
def test_an_uploaded_index_that_is_damaged_or_none_is_not_believed(server, tmp_path, damage):
    server.headers = {"ETag": '"1"'}
    urls = uploaded(server, tmp_path / "local", a=tar([3, 1]), b=tar([4]))
    server.files.update({path: damage(data) for path, data in server.files.items() if path.endswith(".gpuload")})
    assert open_labels(*urls) == [3, 1, 4]


def test_an_uploaded_index_of_expansions_is_not_believed(server, tmp_path):
    import gzip

    server.headers = {"ETag": '"1"'}
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.tar.gz").write_bytes(gzip.compress(tar([3, 1])))
    assert open_catalog(str(local / "a.tar.gz"), format="tar", on_error="raise", options={}).table.labels.tolist() == [
        3,
        1,
    ]
    server.files = {f"/{path.name}": path.read_bytes() for path in local.iterdir()}
    assert "/a.tar.gz.gpuload" in server.files
    found = open_catalog(f"{server.url}/a.tar.gz", format="tar", on_error="raise", options={})
    assert found.table.labels.tolist() == [3, 1] and str(local) not in repr(list(found.table.files))
