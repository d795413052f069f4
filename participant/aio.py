"""The SDK for asyncio: the names of `participant.sync`, awaited.

    async with AsyncParticipant("state", "market.example:7443") as me:
        await me.run(MyTask(), "cats-1")                          # level 1: everything

        joined = await me.join("cats-1")                          # level 2: one's own loop
        await joined.claim(effort=0.3, counts=[120, 80])
        async for round in joined.rounds():
            await round.submit(my_training(await round.weights()), samples=200)

        await me.client.task("cats-1")                            # level 3: the protocol's messages

A task's own code (`Task.train` and the others) runs in a worker thread, so the event loop stays free. The
journal's short transactions run on the loop.
"""

from participant.calls import Awaited, AwaitedConnection
from participant.client import AsyncClient
from participant.membership import Membership, RoundMembership, TaskMembership


class AsyncRound(RoundMembership, Awaited):
    __doc__ = RoundMembership.__doc__


class AsyncJoinedTask(TaskMembership[AsyncRound], Awaited):
    __doc__ = TaskMembership.__doc__
    _round_kind = AsyncRound


class AsyncParticipant(Membership[AsyncJoinedTask], AwaitedConnection):
    __doc__ = Membership.__doc__
    client: AsyncClient
    _client_kind, _joined_kind = AsyncClient, AsyncJoinedTask
