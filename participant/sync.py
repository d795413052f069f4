"""The SDK, synchronous.

    with Participant("state", "market.example:7443") as me:
        me.run(MyTask(), "cats-1")                            # level 1: everything

        joined = me.join("cats-1")                            # level 2: one's own loop
        joined.claim(effort=0.3, counts=[120, 80])
        for round in joined.rounds():
            round.submit(my_training(round.weights()), samples=200)

        me.client.task("cats-1")                              # level 3: the protocol's messages

`participant.aio` has the same for asyncio; both follow from `participant.membership`.
"""

from participant.calls import Blocking, BlockingConnection
from participant.client import Client
from participant.membership import Membership, RoundMembership, TaskMembership
from participant.progress import paused


class Round(RoundMembership, Blocking):
    __doc__ = RoundMembership.__doc__


class JoinedTask(TaskMembership[Round], Blocking):
    __doc__ = TaskMembership.__doc__
    _round_kind = Round


class Participant(Membership[JoinedTask], BlockingConnection):
    __doc__ = Membership.__doc__
    client: Client
    _client_kind, _joined_kind = Client, JoinedTask

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        try:
            if kind is KeyboardInterrupt:  # of a loop of one's own
                raise paused(self._journal, self.participant_id) from None
        finally:
            super().__exit__(kind, *raised)
