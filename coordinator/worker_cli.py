"""`fedpeer worker`: processes that train shadow models for a coordinator elsewhere, and the scheduler between them."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.config import WORKER_FILE, WorkerConfig, read_config, split_address
from coordinator.errors import FolderError, ServeError
from coordinator.remote_workers import RESOURCE, WORKER_FOLDER
from coordinator.shadow_workers import check_device
from coordinator.worker_folders import worker_security
from fedpeer.terminal import configure_logs, printable

app = typer.Typer(no_args_is_help=True, help="Train shadow models for a coordinator elsewhere.")

Folder = Annotated[Path, typer.Argument(help="What `fedpeer coordinator worker` has made.")]

#: Added to the niceness of a worker's processes.
_NICENESS = 5

#: Seconds that processes get to end.
_END_SECONDS = 10

#: Where Dask's HTTP server listens, which cannot be left away: at a free port that other machines do not see.
_NO_PAGES = "127.0.0.1:0"

#: Characters of what Dask says.
_WORDS = 240

#: Of a scheduler whose certificate, or that takes ours for one, of another authority or out of date.
_NOT_OURS = (
    "its certificate and this folder's do not go together: they are of two markets, or one is out of date; have both "
    "folders made again by `fedpeer coordinator worker`"
)

#: Seconds from one attempt to reach a scheduler to the next.
_AGAIN = 2.0


@app.command()
def run(
    folder: Folder,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Models trained at once, each on one core; left out: one a core."),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="Address of this machine that the scheduler and other workers reach; left out: found."
        ),
    ] = "",
) -> None:
    """Work until SIGTERM. A process that dies is started again; the scheduler may come later, and go and come."""
    _begin(folder)
    if host:
        _check_own(host)
    from distributed import Nanny

    from fedpeer.learning.arithmetic import arithmetic, arithmetic_digest

    count = processes or len(os.sched_getaffinity(0))
    config = read_config(folder / WORKER_FILE, WorkerConfig)
    check_device(config.device)
    found = arithmetic(config.device)
    options: dict[str, Any] = {
        "nthreads": 1,
        "security": worker_security(folder),
        "resources": {RESOURCE + arithmetic_digest(found): 1},
        "memory_limit": 0,
        "dashboard": False,
        "dashboard_address": _NO_PAGES,
        "env": {WORKER_FOLDER: str(folder.absolute())},
        "preload": ["coordinator.worker_cli"],
        **({"host": host} if host else {}),
    }
    address = f"tls://{config.scheduler.removeprefix('dask://')}"
    typer.echo(
        f"{count} processes for {config.scheduler}; arithmetic "
        f"{arithmetic_digest(found)}: {', '.join(f'{name} {value}' for name, value in found.items())}",
        err=True,
    )

    def make() -> Any:
        return Nanny(address, **options)

    said = _Said(config.scheduler)
    asyncio.run(_until_stopped(*[partial(_keep_working, make, said) for _ in range(count)]))


@app.command()
def schedule(
    folder: Folder,
    listen: Annotated[str, typer.Option(help="host:port to listen on.")] = "0.0.0.0:8786",
) -> None:
    """Be the scheduler that coordinator and workers reach, until SIGTERM. It keeps nothing."""
    _begin(folder)
    host, port = split_address("--listen", listen, "0.0.0.0:8786")
    host = f"[{host}]" if ":" in host else host  # as Dask wants it
    from distributed import Scheduler

    async def serve() -> None:
        scheduler = Scheduler(
            host=host,
            port=port,
            protocol="tls://",
            security=worker_security(folder),
            dashboard=False,
            dashboard_address=_NO_PAGES,
        )
        try:
            await scheduler
        except (OSError, RuntimeError) as error:  # Dask lays its own words around the system's
            cause = error if isinstance(error, OSError) else error.__cause__ or error
            raise ServeError(
                f"--listen {listen} cannot be had: {getattr(cause, 'strerror', '') or cause}"
            ) from None
        try:
            typer.echo(f"ready at {scheduler.address}", err=True)
            await scheduler.finished()
        finally:
            await asyncio.shield(asyncio.ensure_future(_closed(scheduler)))

    asyncio.run(_until_stopped(serve))


def dask_setup(worker: Any) -> None:
    """In a worker's process, before its first call; Dask's own name for it."""
    import torch

    torch.set_num_threads(1)
    os.nice(_NICENESS)


def _begin(folder: Path) -> None:
    configure_logs()
    if not (folder / WORKER_FILE).is_file():
        raise FolderError(
            f"{folder} is not a worker's folder: it has no {WORKER_FILE}. On the coordinator's machine "
            "`fedpeer coordinator worker FOLDER` makes one; carry it here"
        )
    read_config(folder / WORKER_FILE, WorkerConfig)
    worker_security(folder)  # says what is wrong before anything starts
    import dask

    # Dask's web pages, which ask nobody who he is.
    dask.config.set({f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker")})
    logging.getLogger("distributed").setLevel(logging.ERROR)


def _check_own(host: str) -> None:
    """Raises ServeError for an address that nothing on this machine can listen at."""
    try:
        family, *_, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(where)
    except OSError as error:
        raise ServeError(f"--host {host} is no address of this machine: {error.strerror or error}") from None


class _Said:
    """Why no worker works, on standard error: once for all of them, and again when the reason is another."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._last = ""

    def waiting(self, why: str) -> None:
        if why != self._last:
            typer.echo(f"no work from {self._scheduler} ({why}); it is tried again and again", err=True)
        self._last = why

    def working(self, address: str) -> None:
        self._last = ""
        typer.echo(f"ready at {address}", err=True)


async def _until_stopped(*serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Serves until SIGTERM or SIGINT; or until one has ended, which is an error."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    serving = [asyncio.create_task(each()) for each in serve]
    try:
        await asyncio.wait([*serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        for each in serving:
            if each.done():
                each.result()
    finally:
        for each in serving:
            each.cancel()
        await asyncio.wait(serving, timeout=_END_SECONDS)


async def _keep_working(make: Callable[[], Any], said: _Said) -> None:
    """A worker, and the next one where the scheduler is not there or has left it."""
    while True:
        nanny = make()
        try:
            await nanny
            said.working(nanny.worker_address)
            await nanny.finished()
            said.waiting("it ended, or this worker did")
        except (OSError, TimeoutError, RuntimeError) as error:
            # Dask's words for a scheduler that does not answer, around the system's.
            words = printable(" ".join(str(error.__cause__ or error).split()))
            words = _NOT_OURS if "certificate" in words.lower() else words
            said.waiting(words[:_WORDS] or type(error).__name__)
        finally:
            await asyncio.shield(asyncio.ensure_future(_closed(nanny)))
        await asyncio.sleep(_AGAIN)


async def _closed(server: Any) -> None:
    with suppress(Exception):  # it may never have started
        await server.close()
