"""What a round looks back on: the model that it starts from, and those of the rounds before it."""

from collections.abc import Mapping, Sequence

from coordinator.blobs import BlobStore
from coordinator.scoring import EarlierRound, RoundStart
from coordinator.storage.rounds import RoundRow
from coordinator.storage.submissions import ModelRow
from coordinator.storage.tasks import TaskRow
from coordinator.transaction import Transaction
from mechanism.evidence import KEPT_BROADCASTS
from mechanism.lifecycle import needs_evidence


def merged_before(t: Transaction, row: TaskRow, round_: int) -> dict[int, list[ModelRow]]:
    """Of the settled rounds that evidence of `round_` looks back on, the models that counted."""
    if not needs_evidence(row.terms.rule.name):
        return {}
    found = {}
    for number in range(max(1, round_ - KEPT_BROADCASTS), round_):
        scored = {s.participant_id for s in t.market.round_settlements(row.id, number) if s.assessment.scored}
        found[number] = [m for m in t.market.models(row.id, number) if m.participant_id in scored]
    return found


def round_start(
    row: TaskRow, blobs: BlobStore, rounds: Sequence[RoundRow], merged: Mapping[int, Sequence[ModelRow]]
) -> RoundStart:
    """What the last of the rounds starts from; `merged` were the models in those before."""
    *before, opened = rounds
    most = row.terms.recipe.samples
    history = tuple(
        EarlierRound(
            # Evidence opens those alone that it looks back on.
            (blobs.fetch if r.round in merged else blobs.path)(r.start_model),
            {
                m.participant_id: (blobs.fetch(m.model_sha256), min(m.samples, most))
                for m in merged.get(r.round, ())
            },
        )
        for r in before
    )
    return RoundStart(opened.round, blobs.fetch(opened.start_model), opened.start_model, history)
