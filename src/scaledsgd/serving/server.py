"""One process that listens, answers and learns, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from ..io.tables import InputError
from .access import Problem, Tokens
from .app import Service, application

_KEPT_ALIVE = 30  # seconds for which a connection may be idle between two requests
_HEAD = 10.0  # seconds for the head of a request to arrive
_FILES = 16_384  # connections and files that may be open
_SWITCH = 0.0005  # seconds after which a busy thread lets the others have a turn: 0.005 by default


_Http: Any = AutoHTTPProtocol  # of uvicorn: one of two classes, as httptools is there or not


class _Protocol(_Http):
    """A connection whose requests have to begin in time: uvicorn waits for their heads for ever."""

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._patience = self.loop.call_later(_HEAD, self._give_up)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._waits:
            self._stop_waiting()
        elif self._patience is None:
            self._patience = self.loop.call_later(_HEAD, self._give_up)

    def connection_lost(self, exc) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """As all problems are told."""
        body = Problem(400, msg).body
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n"
        head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()

    @property
    def _waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if self._waits and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Whose signals are ours."""

    @contextmanager
    def capture_signals(self):
        yield


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0")]
    [True, True, True, False]
    """
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket at that address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(2048)
        return found
    except (OSError, OverflowError) as why:
        told = getattr(why, "strerror", None) or why
        raise InputError(f"{host}:{port}: cannot listen there ({told})") from None


def http_server(app: ASGIApp, behind_proxy: bool = False) -> uvicorn.Server:
    """uvicorn, as it is used here."""
    return _Server(
        uvicorn.Config(
            app, lifespan="off", access_log=False, log_config=None, server_header=False,
            timeout_keep_alive=_KEPT_ALIVE, timeout_graceful_shutdown=3,
            proxy_headers=behind_proxy, http=_Protocol, ws="none",
        )
    )  # fmt: skip


def run(
    service: Service, tokens: Tokens | None, place: socket.socket, *, cors: tuple[str, ...] = (),
    behind_proxy: bool = False, started: Callable[[], object] = lambda: None,
) -> str:  # fmt: skip
    """Serve until a signal comes; returns its name, or why the server ended by itself. Args:
    started, called once answers are given."""
    ended: list[str] = []

    def stop(number, frame) -> None:
        ended.append(signal.Signals(number).name)
        server.should_exit = True

    def failed() -> None:
        ended.append(service.live.failure)

    server = http_server(application(service, tokens, cors), behind_proxy)
    service.stopping = lambda: server.should_exit
    _allow_files()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    with ExitStack() as undo:
        undo.callback(lambda: [signal.signal(*pair) for pair in before.items()])
        undo.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH)
        # One product of matrices at a time; threads of BLAS would take the cores of others.
        undo.enter_context(threadpool_limits(1, "blas"))
        if service.learner is not None:
            service.learner.failed = failed
            service.learner.start()
            undo.callback(service.learner.stop)
        undo.callback(service.close)
        gc.collect()
        gc.freeze()  # what is there now stays: no collection has to look at it again
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_served(server, place, started))
    return ended[0] if ended else ""


async def _served(server: uvicorn.Server, place: socket.socket, started: Callable) -> None:
    async def tell() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        started()

    telling = asyncio.create_task(tell())
    await server.serve(sockets=[place])
    telling.cancel()


def _allow_files() -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _FILES) if hard != resource.RLIM_INFINITY else _FILES
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
