"""D. Files behind fsspec URLs: several ranges in flight on one event-loop thread, bounded, retried, never hanging.

Owns the loop, the file systems opened on it, and the limits on what is in flight. Which ranges are read is
coalesce.py's; which errors are worth another attempt is core/retry.py's.

Concurrency:
1. Everything but `read` and `close` runs on the loop's thread. A file system without an asynchronous implementation
   is called from a few daemon threads, and the loop waits for them as for any other answer.
2. Nothing is waited for without a limit: an attempt ends after `timeout_s`, attempts are counted, and `read` looks
   every second whether the loop still runs (test_a_server_that_never_answers_fails_its_rows_in_time).
3. After a fork the loop's thread is gone: `read` says so, and `close` leaves the parent's sockets alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import inspect
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import fsspec
import numpy as np
from fsspec.core import split_protocol, url_to_fs

from gpuload.core.batch import EncodedBatch
from gpuload.core.location import shown
from gpuload.core.retry import backoff_s, is_transient
from gpuload.core.threads import DaemonPool
from gpuload.fetch.coalesce import ReadPlan, coalesce, with_sizes
from gpuload.fetch.limits import RemoteLimits
from gpuload.fetch.local import fail_beyond


class RemoteReader:
    """RangeReader over fsspec URLs. Keywords: `RemoteLimits`' fields. A new one works after a fork.

    storage_options: passed to the file systems (credentials, endpoints).
    """

    def __init__(self, *, storage_options: Mapping[str, Any] | None = None, **limits: Any):
        self.limits = RemoteLimits(**limits)
        self._options = dict(storage_options or {})
        self._systems: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._pool = DaemonPool(threads=self.limits.threads, name="gpuload-fsspec")
        self._loop = asyncio.new_event_loop()
        self._flight = _Flight(self.limits.max_ranges, self.limits.max_bytes)
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="gpuload-fetch", daemon=True)
        self._thread.start()
        self._pid = os.getpid()
        self._closed = False
        self._finalizer = weakref.finalize(self, _stop, self._loop, self._thread, self._systems, self._pid)

    def read(self, files: Sequence[str], refs: np.ndarray) -> EncodedBatch:
        """The bytes of refs: SAMPLE_REF (n,). What every attempt failed to read is in `failures`, row by row."""
        if self._closed or os.getpid() != self._pid:
            raise RuntimeError(f"{self!r} is closed, or was made before a fork: make a new one")
        plan = coalesce(refs, gap_bytes=self.limits.gap_bytes, max_range_bytes=self.limits.max_range_bytes)
        future = asyncio.run_coroutine_threadsafe(self._read(files, plan), self._loop)
        try:
            while True:
                concurrent.futures.wait([future], timeout=1.0)
                if future.done():
                    return future.result()
                if not self._thread.is_alive():
                    raise RuntimeError(f"{self!r} was closed while it was reading")
        except concurrent.futures.CancelledError:
            raise RuntimeError(f"{self!r} was closed while it was reading") from None
        finally:
            future.cancel()

    def close(self) -> None:
        """Cancel what is in flight, close the sessions, end the threads: within 2 s. Idempotent."""
        if self._closed or os.getpid() != self._pid:
            self._closed = True
            return
        self._closed = True
        self._finalizer()
        self._pool.close(timeout_s=0.3)

    def __repr__(self) -> str:
        return (
            f"RemoteReader({sorted(self._systems)}, in_flight={self._flight.ranges}/{self.limits.max_ranges} ranges, "
            f"{self._flight.bytes}/{self.limits.max_bytes} bytes)"
        )

    async def _read(self, files: Sequence[str], plan: ReadPlan) -> EncodedBatch:
        failures: dict[int, BaseException] = {}
        data = np.empty(plan.total_bytes, np.uint8)
        wholes: dict[int, bytes] = {}  # range -> the file

        async def serve(number: int, item: tuple) -> None:
            file, offset, length, at, first, stop, whole = item
            if not length:
                return
            url = files[file]
            try:
                async with self._flight.of(length):
                    part = await self._attempts(url, offset, length)
                    if whole:
                        self._flight.whole_file(len(part))
            except Exception as error:  # any library's: a row's failure, never its neighbours'
                failure = _as_os_error(url, error)
                failures.update(dict.fromkeys(plan.rows[first:stop].tolist(), failure))
                return
            if whole:
                wholes[number] = part
                return
            data[at : at + len(part)] = np.frombuffer(part, np.uint8)
            if len(part) < length:
                fail_beyond(plan, len(part), shown(url), offset, at, first, stop, failures)

        await asyncio.gather(*(serve(number, item) for number, item in enumerate(plan.ranges.tolist())))
        if plan.ranges["whole"].any():
            plan, data = _append(plan, data, wholes)
        if failures:
            plan.lengths[list(failures)] = 0
        return EncodedBatch(data, plan.offsets, plan.lengths, (), failures)

    async def _attempts(self, url: str, offset: int, length: int) -> bytes:
        """The range, or what there is of it where every attempt ended early. Raises the last attempt's error."""
        part = b""
        for attempt in range(self.limits.attempts):
            last = attempt == self.limits.attempts - 1
            try:
                part = await asyncio.wait_for(self._once(url, offset, length), self.limits.timeout_s)
                if length < 0 or len(part) == length or last:
                    return part
            except asyncio.TimeoutError:
                if last:
                    problem = f"no answer within {self.limits.timeout_s:g} s, {self.limits.attempts} times"
                    raise TimeoutError(errno.ETIMEDOUT, problem, shown(url)) from None
            except Exception as error:
                if last or not is_transient(error):
                    raise
            await asyncio.sleep(backoff_s(attempt, first_s=self.limits.backoff_s))
        return part

    async def _once(self, url: str, offset: int, length: int) -> bytes:
        system = await self._system(url)
        start, end = (None, None) if length < 0 else (offset, offset + length)
        path = system._strip_protocol(url) if "::" not in url else url_to_fs(url, **self._options)[1]
        if system.async_impl:
            part = await system._cat_file(path, start=start, end=end)
        else:
            part = await self._on_a_thread(lambda: system.cat_file(path, start=start, end=end))
        if end is not None and len(part) > length:
            problem = f"{len(part)} bytes came where {length} were asked for: the server ignores ranges. Serve the data"
            raise OSError(errno.EOPNOTSUPP, f"{problem} with one that knows them, or copy it to local disk", shown(url))
        return bytes(part) if not isinstance(part, bytes) else part

    async def _system(self, url: str) -> Any:
        protocol = url.split("::", 1)[0] if "::" in url else split_protocol(url)[0] or "file"
        if protocol in self._systems:
            return self._systems[protocol]
        async with self._opening:
            if protocol not in self._systems:
                self._systems[protocol] = await self._open(protocol, url)
        return self._systems[protocol]

    async def _open(self, protocol: str, url: str) -> Any:
        if "::" in url or not fsspec.get_filesystem_class(protocol).async_impl:
            return await self._on_a_thread(lambda: url_to_fs(url, **self._options)[0])
        cls = fsspec.get_filesystem_class(protocol)
        options = {**cls._get_kwargs_from_urls(url), **self._options}
        system = cls(**options, asynchronous=True, loop=self._loop, skip_instance_cache=True)
        if hasattr(system, "set_session"):
            await system.set_session()
        return system

    async def _on_a_thread(self, call: Callable[[], Any]) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def run() -> None:
            try:
                result, error = call(), None
            except Exception as raised:
                result, error = None, raised
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_settle, answer, result, error)

        if not self._pool.submit(run):
            raise RuntimeError(f"{self!r} is closed")
        return await answer


class _Flight:
    """What may be in flight: so many ranges, so many bytes; a range larger than that flies alone. On the loop only.

    A whole file's length is not known before it is here, and asking costs a round trip: it counts as the largest that
    came so far, and as its share of the limits at least.
    """

    def __init__(self, max_ranges: int, max_bytes: int):
        self._max_ranges, self._max_bytes = max_ranges, max_bytes
        self._largest = max(1, max_bytes // max_ranges)
        self.ranges = self.bytes = 0
        self._landed = asyncio.Condition()

    @asynccontextmanager
    async def of(self, length: int) -> AsyncIterator[None]:
        size = 0

        def may_start() -> bool:
            nonlocal size  # anew each time: larger files may have come while this one waited
            size = min(length if length >= 0 else self._largest, self._max_bytes)
            return self.ranges < self._max_ranges and self.bytes + size <= self._max_bytes

        async with self._landed:
            await self._landed.wait_for(may_start)
            self.ranges += 1
            self.bytes += size
        try:
            yield
        finally:
            self.ranges -= 1
            self.bytes -= size
            async with self._landed:
                self._landed.notify_all()

    def whole_file(self, n_bytes: int) -> None:
        """A whole file came: the next ones may be as large."""
        self._largest = max(self._largest, n_bytes)


def _append(plan: ReadPlan, data: np.ndarray, wholes: dict[int, bytes]) -> tuple[ReadPlan, np.ndarray]:
    numbers = np.flatnonzero(plan.ranges["whole"]).tolist()
    parts = [np.frombuffer(wholes.get(number, b""), np.uint8) for number in numbers]
    sized = with_sizes(plan, np.array([part.size for part in parts], np.int64))
    return sized, np.concatenate([data, *parts])


def _as_os_error(url: str, error: Exception) -> OSError:
    """`error` itself where it is an OSError that names no secret; else one that says the same without it."""
    text = str(error)
    public = shown(text)
    if isinstance(error, OSError) and public == text:
        return error
    for kind, number in ((FileNotFoundError, errno.ENOENT), (PermissionError, errno.EACCES)):
        if isinstance(error, kind):
            return kind(number, os.strerror(number), shown(url))
    failure = OSError(errno.EIO, f"{type(error).__name__}: {public}", shown(url))
    if public == text:
        failure.__cause__ = error
    return failure


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():  # cancelled, or given up after its time-out
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, systems: Mapping[str, Any], pid: int) -> None:
    """End the loop: at `close`, when its reader is forgotten, and at exit, where open sessions are complained of."""
    if os.getpid() != pid or not thread.is_alive() or loop.is_closed():
        return
    loop.call_soon_threadsafe(lambda: loop.create_task(_end(loop, systems)))
    if thread is not threading.current_thread():
        thread.join(1.5)


async def _end(loop: asyncio.AbstractEventLoop, systems: Mapping[str, Any]) -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=0.4) if others else None
    try:
        await asyncio.wait_for(_close_sessions(systems), 0.4)
    except Exception:  # any library's: the sockets end with their loop
        pass
    finally:
        loop.stop()


async def _close_sessions(systems: Mapping[str, Any]) -> None:
    for system in systems.values():
        session = getattr(system, "_session", None) or getattr(system, "_s3", None)
        closing = session.close() if session is not None and system.async_impl else None
        if inspect.isawaitable(closing):
            await closing
