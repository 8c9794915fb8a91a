"""An HTTP server of byte strings with ranges, whose answers tests can hold back, fail and count."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Chosen = Callable[[str, int, int], bool]
"""(path, begin, end) of a request -> whether it is meant."""


class RangeServer(ThreadingHTTPServer):
    """requests: "PATH BEGIN-END" each, "HEAD PATH" for a HEAD. sent: bytes by path. headers: sent with each answer.

    shifted: bytes by which the ranges that come lie behind those that were asked for.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, files: Mapping[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = dict(files)
        self.headers: dict[str, str] = {}
        self.shifted = 0
        self.requests: list[str] = []
        self.sent: Counter[str] = Counter()
        self._held: Chosen = lambda *_: False
        self._failed: Chosen = lambda *_: False
        self._cut: Chosen = lambda *_: False
        self._released = threading.Event()

    def __enter__(self) -> RangeServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.shutdown()
        self.server_close()

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.server_address[1]}{path}" for path in self.files]

    def hold(self, chosen: Chosen) -> None:
        """Answers to these wait for `release`."""
        self._held = chosen

    def release(self) -> None:
        self._released.set()

    def fail(self, chosen: Chosen) -> None:
        """These are answered with 500."""
        self._failed = chosen

    def cut(self, chosen: Chosen) -> None:
        """Of these answers half of the body comes, and then the connection breaks."""
        self._cut = chosen

    def breaks(self, path: str, begin: int, end: int) -> bool:
        return self._cut(path, begin, end)

    def wait_for(self, requests: int) -> None:
        while len(self.requests) < requests:
            time.sleep(0.005)

    def meet(self, path: str, begin: int, end: int) -> bool:
        """Wait as long as this one is held; whether it succeeds."""
        if self._held(path, begin, end):
            self._released.wait(20)
        return not self._failed(path, begin, end)

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        """Clients leave while they are held."""


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave together, and nobody waits for an acknowledgement in between

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.server.requests.append(f"HEAD {self.path}")
        self._head(200, len(self.server.files[self.path]))

    def do_GET(self) -> None:
        data = self.server.files[self.path]
        begin, end, status = 0, len(data), 200
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            begin, end, status = int(first), int(last) + 1 if last else end, 206
        self.server.requests.append(f"{self.path} {begin}-{end}")
        if not self.server.meet(self.path, begin, end):
            self.send_error(500)
            return
        begin, end = begin + self.server.shifted, end + self.server.shifted
        if begin >= len(data):
            self.send_error(416)
            return
        part = data[begin:end]
        self.server.sent[self.path] += len(part)
        self._head(status, len(part), f"bytes {begin}-{begin + len(part) - 1}/{len(data)}" if status == 206 else "")
        if self.server.breaks(self.path, begin, end):
            part = part[: len(part) // 2]
            self.close_connection = True
        self.wfile.write(part)

    def _head(self, status: int, length: int, content_range: str = "") -> None:
        self.send_response_only(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        if content_range:
            self.send_header("Content-Range", content_range)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
