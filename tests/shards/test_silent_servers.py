"""Servers that accept a question and say nothing, or begin to answer and stop: opening a data set ends all the same."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from gpuload.core.errors import ShardError
from gpuload.shards import urls


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(urls, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(urls, "ATTEMPTS", 2)
    monkeypatch.setattr(urls, "BACKOFF_S", 0.01)


@pytest.fixture
def serve():
    """Starts a server that gives each connection to `answer`; its address."""
    pytest.importorskip("aiohttp", reason="fsspec's HTTP file system needs aiohttp")
    listening = socket.create_server(("127.0.0.1", 0))
    held = []

    def start(answer) -> str:
        def accept() -> None:
            try:
                while True:
                    held.append(listening.accept()[0])
                    threading.Thread(target=answer, args=(held[-1],), daemon=True).start()
            except OSError:
                """It was closed."""

        threading.Thread(target=accept, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield start
    listening.close()
    for connection in held:
        connection.close()


def outcome(ask) -> list:
    """What it gave or raised, within 20 s; nothing where it hangs."""
    found: list = []

    def run() -> None:
        try:
            found.append(ask())
        except ShardError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    return found


def test_a_server_that_says_nothing_is_given_up(serve, impatient):
    url = f"{serve(lambda connection: None)}/a.tar"
    (error,) = outcome(lambda: urls.stamp(url, {}))
    assert isinstance(error, ShardError) and error.url == url and "2 attempts" in str(error)


def test_a_server_that_stops_in_the_middle_is_given_up(serve, impatient):
    def half(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\n\r\n" + bytes(50))

    url = f"{serve(half)}/a.tar"
    (error,) = outcome(lambda: urls.read_optional(url, {}))
    assert isinstance(error, ShardError) and error.url == url


def test_an_answer_that_is_slow_and_keeps_coming_is_waited_for(serve, impatient):
    def slowly(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            time.sleep(0.1)
            connection.sendall(b"x")

    url = f"{serve(slowly)}/classes.json"
    assert outcome(lambda: urls.read_optional(url, {})) == [b"x" * 10]


def test_a_time_out_of_the_users_own_stays(serve):
    aiohttp = pytest.importorskip("aiohttp")
    url = f"{serve(lambda connection: None)}/a.tar"
    options = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.2)}}
    (error,) = outcome(lambda: urls.asked(url, options, lambda system, path: system.info(path)))
    assert isinstance(error, ShardError)
