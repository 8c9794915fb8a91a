"""Is it better to stream shards from a shared store or to copy them first, and from which image on?

Command:  python -m bench.storage [PHOTOS] [--delay-ms 20] [--mb-per-s 50]
          PHOTOS: a folder of JPEGs; $GPULOAD_DATA/photos where not given. They are packed to shards of 4 MB.
Machine:  stands in every line of bench/results/storage.jsonl, with versions and commit.
Result:   two lines, streamed and copied first; `python -m bench.tables` makes the page's table of them.
Explanation: docs/benchmarks.md.

The store is an HTTP server on this machine that waits before each answer and then sends all its answers together at one
rate: what a loader meets in a shared store, the same on each run. Owns that server; the measuring is `gpuload bench
--storage`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "storage.jsonl"
PIECE_BYTES = 1 << 16


class Store(ThreadingHTTPServer):
    """Serves the files of `folder`, ranges too. delay_s: before each answer. bytes_per_s: of all answers together."""

    daemon_threads = True
    request_queue_size = 128  # of Python's 5, every connection too many waits a second for its next attempt

    def __init__(self, folder: Path, *, delay_s: float, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = {f"/{path.name}": path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s
        self._free_s = 0.0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def pass_line(self, length: int) -> None:
        """Returns when the line, which carries one piece after the other, has carried `length` bytes."""
        with self._lock:
            self._free_s = max(self._free_s, time.monotonic()) + length / self.bytes_per_s
            until_s = self._free_s
        time.sleep(max(0.0, until_s - time.monotonic()))


class Answer(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait for an acknowledgement

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(None)

    def answer(self, body: bytes | None) -> None:
        time.sleep(self.server.delay_s)
        data = self.server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        asked = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        begin, end = (int(asked[1]), int(asked[2] or len(data) - 1) + 1) if asked else (0, len(data))
        part = data[begin:end]
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"1"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{begin + len(part) - 1}/{len(data)}")
        self.end_headers()
        for at in range(0, len(part) if body is None else 0, PIECE_BYTES):
            piece = part[at : at + PIECE_BYTES]
            self.server.pass_line(len(piece))
            self.wfile.write(piece)


def main(argv: Sequence[str]) -> int:
    """Packs, serves, measures, and appends the lines to RESULTS. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.storage", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", nargs="?", default=os.path.join(os.environ.get("GPULOAD_DATA", ""), "photos"))
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--mb-per-s", type=float, default=50.0)
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    asked = parser.parse_args(argv)
    if not os.path.isdir(asked.photos):
        sys.stderr.write(f"bench: no folder at {asked.photos!r}: give one, or set GPULOAD_DATA to one with photos/\n")
        return 2
    gpuload = [sys.executable, "-m", "gpuload"]
    with tempfile.TemporaryDirectory() as folder:
        shards, out = Path(folder) / "photos", Path(folder) / "lines.jsonl"
        packing = [*gpuload, "pack", asked.photos, str(shards), "--shard-size", "4MB", "--no-entropy"]
        subprocess.run(packing, check=True)
        store = Store(shards, delay_s=asked.delay_ms / 1000, bytes_per_s=1e6 * asked.mb_per_s)
        threading.Thread(target=store.serve_forever, daemon=True).start()
        last = max(int(name[-10:-4]) for name in store.files if name.endswith(".tar"))
        url = f"{store.url}/photos-{{000000..{last:06d}}}.tar"
        done = subprocess.run([*gpuload, "bench", "--storage", url, "--json", str(out)], check=False)
        store.shutdown()
        if done.returncode:
            return done.returncode
        lines = [json.loads(text) for text in out.read_text().splitlines()]
    name = f"HTTP, {asked.delay_ms:g} ms a request, {asked.mb_per_s:g} MB/s"
    if not asked.no_record:
        with RESULTS.open("a") as results:
            results.writelines(json.dumps({**line, "storage": name}) + "\n" for line in lines)
    return 1 if any(line["not_timed"] for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
