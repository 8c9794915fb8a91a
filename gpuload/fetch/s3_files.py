"""Objects of S3 and what speaks it: a signed URL an object, and a plain GET a range.

botocore makes about a hundred objects to read one: 1.3 ms of CPU a request, where a plain GET of a signed URL costs
0.3 ms (`python -m bench.remote --only range`). So botocore is asked for a signed URL once an object and half hour,
with the credentials, region, endpoint and addressing that the user's settings give, and aiohttp, on which s3fs itself
stands, gets the ranges. What a signed URL cannot say (headers of `s3_additional_kwargs`, requester pays), and settings
of the connection that only botocore knows (proxies, certificates), are left to s3fs, as is every answer that is
neither bytes nor a passing failure: it knows redirects between regions, and the words for what is forbidden.
"""

from __future__ import annotations

import errno
import os
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuload.core.location import shown
from gpuload.core.retry import RETRIED_STATUS
from gpuload.fetch.limits import MIB
from gpuload.fetch.remote_files import Seen, Stream, range_of, version_of

SIGNED_FOR_S, SIGNED_ANEW_S = 3600, 1800
REFUSALS = 4
"""Objects whose signed URL is refused, and that s3fs reads, before signing is given up."""

_CODE = re.compile(rb"<Code>([\w.]{1,64})</Code>")
_PLAIN_BUCKET = re.compile(r"s3a?://[a-z0-9][a-z0-9.-]*(?<!--x-s3)(/|$)")


ObjectName = tuple[str, str, "str | None"]
"""Bucket, key, version: as s3fs splits a path."""


class StatusError(Exception):
    """An answer that is none. status: HTTP's."""

    def __init__(self, status: int, code: str):
        super().__init__(f"HTTP {status} {code}".rstrip())
        self.status = status


class _Refused(Exception):
    """The signed URL did not do."""


@dataclass(frozen=True)
class _Signed:
    url: Any  # yarl's
    until_s: float


def settings_for(url: str, options: Mapping[str, Any], *, connections: int) -> dict[str, Any]:
    """`options`, storage_options for s3fs, with what reading many ranges needs where they do not say otherwise.

    Signatures of version 4, which every region and server knows, also in URLs; not for directory buckets and access
    points, which have their own. As many connections as there may be ranges in flight: botocore's 10 are few.
    """
    ours: dict[str, Any] = {"max_pool_connections": connections}
    if has_plain_bucket(url):
        ours["signature_version"] = "s3v4"
    return {**options, "config_kwargs": {**ours, **(options.get("config_kwargs") or {})}}


def has_plain_bucket(url: str) -> bool:
    """Whether the bucket is no directory bucket (--x-s3), no access point (arn:...) and of no new kind."""
    return _PLAIN_BUCKET.match(url) is not None


class S3Files:
    """system: s3fs's S3FileSystem, asynchronous, its session set."""

    in_pieces = True

    def __init__(self, system: Any, *, connections: int):
        self._system, self._connections = system, connections
        self._signs = _may_sign(system)
        self._signed: dict[ObjectName, _Signed] = {}
        self._session: Any = None
        self._tls: Any = None
        self._served = False  # by a signed URL
        self._refusals = 0

    async def stream(self, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        name = self._system.split_path(self._system._strip_protocol(url))
        refused = False
        if self._signs:
            try:
                async for piece in self._by_signed_url(name, url, start, stop, seen):
                    yield piece
                return
            except _Refused as refusal:
                refused, why = True, str(refusal)
        async for piece in self._by_s3fs(name, url, start, stop, seen):
            if refused:
                refused = False
                self._note_refusal(why)
            yield piece

    async def info(self, url: str) -> Mapping[str, Any]:
        return await self._system._info(self._system._strip_protocol(url))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self._system._s3.close()

    async def _by_signed_url(self, name: ObjectName, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        ranged = bool(start) or stop is not None
        headers = {"Range": range_of(start, stop)} if ranged else {}
        async with await self._get(await self._url(name), headers) as answer:
            if answer.status not in (200, 206):
                await self._fail(answer, name, url)
            if ranged and answer.status != 206 and "Content-Range" not in answer.headers:
                raise _Refused("it ignores ranges")
            self._served = True
            seen(version_of(answer.headers, url, start, whole=not ranged))
            async for piece in answer.content.iter_any():
                yield piece

    async def _get(self, url: Any, headers: Mapping[str, str]) -> Any:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # link.py's
                auto_decompress=False,
                read_bufsize=MIB,
                headers={"Accept-Encoding": "identity"},
            )
        if url.scheme == "https" and self._tls is None:
            self._tls = _tls(self._system)
        tls = {"ssl": self._tls} if url.scheme == "https" else {}
        return await self._session.get(url, headers=headers, allow_redirects=False, **tls)

    async def _url(self, name: ObjectName) -> Any:
        signed = self._signed.get(name)
        if signed is None or signed.until_s < time.monotonic():
            import yarl

            bucket, key, version = name
            given = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}
            client = await self._system.get_s3(bucket)
            try:
                text = await client.generate_presigned_url("get_object", Params=given, ExpiresIn=SIGNED_FOR_S)
            except Exception as error:  # botocore's: no credentials, a signature that cannot be a URL's
                raise _Refused(f"{type(error).__name__}: {error}") from error
            signed = _Signed(yarl.URL(text, encoded=True), time.monotonic() + SIGNED_ANEW_S)
            self._signed[name] = signed
        return signed.url

    async def _fail(self, answer: Any, name: ObjectName, url: str) -> None:
        """Raise what this answer means."""
        found = _CODE.search(await answer.content.read(4096))
        code = found[1].decode() if found else ""
        if answer.status == 404:
            raise FileNotFoundError(errno.ENOENT, code or os.strerror(errno.ENOENT), shown(url))
        if answer.status >= 500 or answer.status in RETRIED_STATUS or answer.status == 416:
            raise StatusError(answer.status, code)
        self._signed.pop(name, None)  # expired, perhaps: its credentials may live shorter than it
        raise _Refused(f"HTTP {answer.status} {code}".rstrip())

    def _note_refusal(self, why: str) -> None:
        self._refusals += 1
        if self._signs and not self._served and self._refusals >= REFUSALS:
            self._signs = False
            warnings.warn(
                f"{shown(self._system._s3.meta.endpoint_url)} refuses signed URLs ({why}): objects are read through "
                "s3fs, at four times the CPU a request. Where the bucket lies in another region, name it: "
                'storage_options={"client_kwargs": {"region_name": ...}}',
                stacklevel=2,
            )

    async def _by_s3fs(self, name: ObjectName, url: str, start: int, stop: int | None, seen: Seen) -> Stream:
        bucket, key, version = name
        given = {"VersionId": version} if version else {}
        if start or stop is not None:
            given["Range"] = range_of(start, stop)
        answer = await self._system._call_s3("get_object", Bucket=bucket, Key=key, **given)
        try:
            headers = answer["ResponseMetadata"]["HTTPHeaders"]
            seen(version_of(headers, url, start, whole="Range" not in given))
            while piece := await answer["Body"].read(1 << 20):
                yield piece
        finally:
            answer["Body"].close()


def _may_sign(system: Any) -> bool:
    """Whether a signed URL and a connection of ours say all that the user's settings say."""
    from botocore.utils import get_environ_proxies

    config, client = system.config_kwargs, system.client_kwargs
    return not (
        system._get_s3_method_kwargs(system._s3.get_object)
        or any(name in config for name in ("proxies", "proxies_config", "client_cert"))
        or any(name in client for name in ("verify", "config"))
        or get_environ_proxies(system._s3.meta.endpoint_url)
    )


def _tls(system: Any) -> Any:
    """As botocore checks a server: against AWS_CA_BUNDLE or the profile's, else its own certificates."""
    import ssl

    from botocore.httpsession import get_cert_path

    bundle = system.session.get_config_variable("ca_bundle") or get_cert_path(True)
    return ssl.create_default_context(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
