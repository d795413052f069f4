"""What the ledger commits to about a participant, fetched, and held against its own claim and models.

The coordinator gives a participant the openings of the entries about itself, and once the task has ended those of the
rounds' evidence. With them `fedpeer ledger verify --openings` recomputes its degree and its verdicts.
"""

from mechanism.canonical import parse_canonical
from mechanism.errors import FieldError
from mechanism.ledger.openings import Openings
from participant.effects import Steps
from participant.errors import StateError
from participant.steps import MarketSteps


def fetch_openings(task_id: str, participant_id: str, market: MarketSteps) -> Steps[Openings]:
    """The openings that the coordinator gives a participant.

    Raises:
        NotFoundError: no such task.
        StateError: what it gives is no opening.
    """
    found = yield from market.openings(task_id)
    try:
        return Openings(participant_id, {name: parse_canonical(data) for name, data in found.items()})
    except FieldError as error:
        raise StateError(
            f"the coordinator gives an opening of task {task_id} that cannot be read ({error}); ask its operator"
        ) from None
