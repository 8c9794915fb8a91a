"""File systems that are called from threads: each opens its own, and the first one is alone."""

from __future__ import annotations

import threading
import time

import fsspec
import numpy as np
import pytest
from fsspec import AbstractFileSystem

from gpuload.core import file_systems
from gpuload.core.refs import whole_files
from gpuload.fetch.remote import RemoteReader
from gpuload.shards.urls import stamps


class Login(AbstractFileSystem):
    """Whoever opens it while the first one does is refused, as by an SMB server whose session is half made."""

    protocol = "login"
    opening = threading.Semaphore(1)
    reached = False
    threads: set[int] = set()

    def __init__(self, **options):
        super().__init__(**options)
        if not Login.reached:
            if not Login.opening.acquire(blocking=False):
                raise PermissionError("no username was specified")
            time.sleep(0.02)
            Login.reached = True
            Login.opening.release()
        Login.threads.add(threading.get_ident())

    def info(self, path, **options):
        return {"name": path, "size": 7, "type": "file", "mtime": 1}

    def cat_file(self, path, start=None, end=None, **options):
        time.sleep(0.01)
        return path.encode()


@pytest.fixture(autouse=True)
def nobody_has_logged_in():
    fsspec.register_implementation("login", Login, clobber=True)
    Login.clear_instance_cache()
    Login.threads.clear()
    Login.reached = False
    file_systems._forget()


def test_threads_that_ask_wait_for_the_first_that_opens_a_file_system():
    assert [stamp.size for stamp in stamps([f"login://host/{number}.tar" for number in range(30)], {})] == [7] * 30
    assert len(Login.threads) > 1


def test_a_server_that_does_not_answer_holds_up_nobody_else():
    with file_systems._opening.setdefault("login://away", threading.Lock()):
        assert file_systems.file_system_of("login://here/1.jpg", {})[1].endswith("1.jpg")


def test_threads_that_read_wait_for_the_first_that_opens_a_file_system():
    urls = [f"login://host/{number}.jpg" for number in range(40)]
    reader = RemoteReader(threads=8, attempts=1)
    encoded = reader.read(urls, whole_files(np.arange(40)))
    reader.close()
    assert not encoded.failures and len(Login.threads) > 1
    assert [bytes(encoded.encoded(row)).decode().rpartition("/")[2] for row in range(40)] == [
        f"{number}.jpg" for number in range(40)
    ]
