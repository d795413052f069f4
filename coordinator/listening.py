"""What other processes of this market have changed, as they say it: PostgreSQL's LISTEN on a connection of its own."""

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from coordinator.storage.changes import CHANNEL, Change
from fedpeer.audit.sql.database import noticing
from fedpeer.audit.sql.errors import DatabaseUnreachable


async def listen(
    url: URL, begun: Callable[[], Awaitable[None]], heard: Callable[[Change], Awaitable[None]]
) -> None:
    """Hands on each change by another process, until it is cancelled.

    Args:
        begun: called once nothing can be missed any more: what has been changed before is read there.

    Raises:
        DatabaseUnreachable: the connection cannot be had, or has ended; changes may have been missed.
    """
    import psycopg

    try:
        connection: Any = await psycopg.AsyncConnection.connect(
            **_parameters(url), autocommit=True, application_name="fedpeer changes"
        )
        async with connection:
            found = await connection.execute(f"SELECT {CHANNEL}")
            (channel,) = await found.fetchone()
            await connection.execute(f'LISTEN "{channel}"')
            await begun()
            async for notice in connection.notifies():
                change = Change.parse(notice.payload)
                if not change.ours:
                    await heard(change)
    except psycopg.OperationalError as error:
        raise DatabaseUnreachable(f"word of changes cannot be received: {error}") from None
    raise DatabaseUnreachable("the connection by which changes are received has ended")


def _parameters(url: URL) -> dict[str, Any]:
    """What the driver connects by."""
    engine = create_engine(noticing(url), poolclass=NullPool)
    _, parameters = engine.dialect.create_connect_args(engine.url)
    return dict(parameters)
