"""The life of the small engine's process: listen, load, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from tunewright_workloads.contract.faults import Fault, UserError
from tunewright_workloads.serve.app import Engine, State, create

log = logging.getLogger(__name__)


LAST_WORDS = 5
"""Seconds for the answers to requests that the drain cut off."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which ends in the signal's own exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(load: Callable[[], Engine], *, host: str, port: int, drain: int) -> None:
    """Serves until SIGTERM or SIGINT; then takes no new connections, lets the requests in flight end
    for up to `drain` seconds, and returns.

    Listens before the model is loaded, so that a port in use is known at once; `/health` says 503
    until the model is ready. Raises what `load` raises, UserError for a port that cannot be had.
    """
    _many_connections()
    listener = _listen(host, port)
    with contextlib.closing(listener):
        asyncio.run(_serve(load, listener, drain))


def _many_connections() -> None:
    """A thousand clients are more files than most systems allow a process by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise UserError(
            Fault("port", f"cannot listen on {host}: {error.strerror}", str(port), "Choose another port.")
        ) from None
    return listener


async def _serve(load: Callable[[], Engine], listener: socket.socket, drain: int) -> None:
    state = State()
    server = _Server(
        uvicorn.Config(
            create(state),
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=drain + LAST_WORDS,
            timeout_keep_alive=75,
        )
    )
    loop = asyncio.get_running_loop()

    def cut() -> None:
        """Whoever is not done by now is told so, in OpenAI's shape, before the connections go."""
        if state.engine is not None:
            state.engine.scheduler.stop(wait=False)

    def end(number: int) -> None:
        log.info("%s: draining for up to %d s", signal.Signals(number).name, drain)
        server.should_exit = True
        loop.call_later(drain, cut)
        for other in (signal.SIGTERM, signal.SIGINT):  # a second signal does not wait
            loop.add_signal_handler(other, lambda: setattr(server, "force_exit", True))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)

    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(_load(load, state))
    try:
        await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done() and loading.exception() is not None:
            server.should_exit = True
            await serving
            loading.result()
        if loading.done() and state.engine is not None:
            log.info("%s is ready", state.engine.name)
        await serving
    finally:
        loading.cancel()
        if state.engine is not None:
            await asyncio.to_thread(state.engine.scheduler.stop)


async def _load(load: Callable[[], Engine], state: State) -> None:
    """Loads in a daemon thread: one in the middle of a compilation must not hold up the end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Engine] = loop.create_future()

    def settle(set_: Callable[[Any], None], value: Any) -> None:
        if not done.done():
            set_(value)

    def work() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (done.set_result, load())
        except BaseException as error:
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name="load", daemon=True).start()
    state.engine = await done
