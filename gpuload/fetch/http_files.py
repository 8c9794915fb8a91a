"""Files of HTTP servers that know ranges: streams, through the session that fsspec opened with the user's settings."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from gpuload.core.location import shown
from gpuload.fetch.limits import MIB
from gpuload.fetch.remote_files import Seen, Stream, range_of, version_of


def settings_for(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options`, storage_options for fsspec's HTTP, with a buffer for large ranges where they say nothing of it.

    aiohttp's 64 KiB are full before the loop comes by again, and each time the socket is turned off and on.
    """
    if "get_client" in options:  # the user's own, which may not know the setting
        return {**options}
    return {**options, "client_kwargs": {"read_bufsize": MIB, **(options.get("client_kwargs") or {})}}


class HttpFiles:
    """system: fsspec's HTTPFileSystem, asynchronous."""

    in_pieces = True

    def __init__(self, system: Any):
        self._system = system

    async def stream(self, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        system = self._system
        given = {**system.kwargs}
        headers = {"Accept-Encoding": "identity", **given.pop("headers", {})}
        if start or stop is not None:
            headers["Range"] = range_of(start, stop)
        session = await system.set_session()
        async with session.get(system.encode_url(system._strip_protocol(url)), headers=headers, **given) as answer:
            system._raise_not_found_for_status(answer, url)
            whole = answer.status != 206
            if whole and "Range" in headers and (start or answer.content_length != stop):
                came = f"{answer.content_length} bytes come" if answer.content_length is not None else "all bytes come"
                asked = f"from byte {start} on" if stop is None else f"{stop - start}"
                raise OSError(
                    errno.EOPNOTSUPP,
                    f"{came} where {asked} were asked for: the server ignores ranges. Serve the data with one that "
                    "knows them, or copy it to local disk",
                    shown(url),
                )
            seen(version_of(answer.headers, url, start, whole=whole))
            async for piece in answer.content.iter_any():
                yield piece

    async def info(self, url: str) -> Mapping[str, Any]:
        return await self._system._info(self._system._strip_protocol(url))

    async def close(self) -> None:
        session = self._system._session
        if session is not None:
            await session.close()
