"""`fedpeer worker`: processes that train shadow models for a coordinator elsewhere, and the scheduler between them."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.config import WORKER_FILE, WorkerConfig, read_config
from coordinator.errors import ServeError
from coordinator.remote_workers import RESOURCE, WORKER_FOLDER
from coordinator.shadow_workers import check_device
from coordinator.worker_folders import worker_security
from fedpeer.terminal import configure_logs

app = typer.Typer(no_args_is_help=True, help="Train shadow models for a coordinator elsewhere.")

Folder = Annotated[Path, typer.Argument(help="What `fedpeer coordinator worker` has made.")]

#: Added to the niceness of a worker's processes.
_NICENESS = 5

#: Seconds that processes get to end.
_END_SECONDS = 10

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

    asyncio.run(_until_stopped(*[partial(_keep_working, make) for _ in range(count)]))


@app.command()
def schedule(
    folder: Folder,
    listen: Annotated[str, typer.Option(help="host:port to listen on.")] = "0.0.0.0:8786",
) -> None:
    """Be the scheduler that coordinator and workers reach, until SIGTERM. It keeps nothing."""
    _begin(folder)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit():
        raise ServeError(f"--listen is {listen!r}; expected host:port such as 0.0.0.0:8786")
    from distributed import Scheduler

    async def serve() -> None:
        scheduler = Scheduler(
            host=host, port=int(port), protocol="tls://", security=worker_security(folder), dashboard=False
        )
        try:
            await scheduler
        except OSError as error:
            raise ServeError(f"--listen {listen} cannot be had: {error.strerror or error}") from None
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
    read_config(folder / WORKER_FILE, WorkerConfig)
    worker_security(folder)  # says what is wrong before anything starts
    logging.getLogger("distributed").setLevel(logging.ERROR)


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


async def _keep_working(make: Callable[[], Any]) -> None:
    """A worker, and the next one where the scheduler is not there or has left it."""
    while True:
        nanny = make()
        try:
            await nanny
            typer.echo(f"ready at {nanny.worker_address}", err=True)
            await nanny.finished()
        except (OSError, TimeoutError, RuntimeError):  # Dask's words for a scheduler that does not answer
            pass
        finally:
            await asyncio.shield(asyncio.ensure_future(_closed(nanny)))
        await asyncio.sleep(_AGAIN)


async def _closed(server: Any) -> None:
    with suppress(Exception):  # it may never have started
        await server.close()
