"""A proxy that stands before an HTTP server and spoils a share of the answers, by a seed.

    drop       the connection breaks in the middle of the body
    busy       503 in place of the answer
    stall      half of the body, and then nothing
    truncate   half of the body, and the headers say that this is all
    too long   Content-Length promises more than comes
    too short  Content-Length promises less than comes

Only answers with a body of SPOILED_FROM bytes and more, which those to a range or a file have, are spoilt in what
comes; `busy` meets every request.
"""

from __future__ import annotations

import http.client
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"
FAULTS = ("drop", "busy", "stall", "truncate", "too long", "too short")
SPOILED_FROM = 64


class FaultProxy(ThreadingHTTPServer):
    """upstream: port of the server. share: of the requests that meet a fault. delay_s: before each answer."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, upstream: int, *, share: float = 0.2, seed: int = 0, stall_s: float = 30.0, delay_s: float = 0.0
    ):
        super().__init__((HOST, 0), _Handler)
        self.upstream, self.share, self.stall_s, self.delay_s = upstream, share, stall_s, delay_s
        self.met: Counter[str] = Counter()
        self.requests = self.body_bytes = 0
        self.released = threading.Event()
        self._draw, self._lock = random.Random(seed), threading.Lock()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def next_fault(self) -> str:
        """ "" for none."""
        with self._lock:
            self.requests += 1
            return self._draw.choice(FAULTS) if self._draw.random() < self.share else ""

    def count(self, fault: str, sent: int) -> None:
        with self._lock:
            if fault:
                self.met[fault] += 1
            self.body_bytes += sent

    def handle_error(self, request, client_address) -> None:  # type: ignore[no-untyped-def]
        """Clients leave in the middle of an answer, as they should when it stalls."""


@contextmanager
def fault_proxy(upstream: int, **how: float) -> Iterator[FaultProxy]:
    """Keywords as FaultProxy's."""
    proxy = FaultProxy(upstream, **how)  # type: ignore[arg-type]
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FaultProxy
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fault = self.server.next_fault()
        if self.server.delay_s:
            time.sleep(self.server.delay_s)
        if fault == "busy":
            self.server.count(fault, 0)
            self._answer(503, {"Content-Type": "text/plain"}, b"busy\n", promised=5)
            return
        status, headers, body = self._ask_upstream()
        fault = fault if len(body) >= SPOILED_FROM and status in (200, 206) else ""
        half = body[: len(body) // 2]
        self.server.count(fault, len(body))
        if fault == "truncate":
            self._answer(status, headers, half, promised=len(half))
        elif fault == "too long":
            self._answer(status, headers, body, promised=len(body) + 100)
            self._hang_up()
        elif fault == "too short":
            self._answer(status, headers, body, promised=len(body) - 50)
            self._hang_up()
        elif fault in ("drop", "stall"):
            self._answer(status, headers, half, promised=len(body))
            if fault == "stall":
                self.server.released.wait(self.server.stall_s)
            self._hang_up()
        else:
            self._answer(status, headers, body, promised=int(headers.get("Content-Length", len(body))))

    do_HEAD = do_GET

    def _ask_upstream(self) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection(HOST, self.server.upstream, timeout=30)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    upstream.putheader(name, value)
            upstream.endheaders()
            answer = upstream.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            upstream.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, promised: int) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":  # a process of its own, which takes nothing from whoever is measured
    with fault_proxy(int(sys.argv[1]), share=0.0, delay_s=float(sys.argv[2])) as standing:
        sys.stdout.write(f"{standing.port}\n")
        sys.stdout.flush()
        sys.stdin.read()
