"""Evidence by one small class, so that the service need not know how a task is scored.

A scorer works on files and blocks; the service calls it from its own thread. Everything that it returns is a
function of the task's root, its terms, D_c and the submitted files: asked again after a restart, it says the
same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from coordinator.config import DataSection
from coordinator.derivation import evidence_seed, validation_salt
from coordinator.errors import TaskError
from coordinator.opening import LearnerData, commit_validation, load_learner_data
from coordinator.shadow_workers import workers_for
from coordinator.storage.tasks import TaskRow
from fedpeer.protocol.model_file import open_model
from fedpeer.protocol.submission import Submission
from mechanism.canonical import Json
from mechanism.lifecycle import needs_evidence
from mechanism.settlement import Assessment
from mechanism.unmeasured import as_claimed

log = structlog.get_logger()

if TYPE_CHECKING:  # evidence imports torch, which most commands do without
    from fedpeer.evidence import ShadowEnsemble
    from fedpeer.evidence.assessing import Broadcast
    from fedpeer.evidence.generic.measuring import Report


@dataclass(frozen=True)
class RoundStart:
    """What a round starts from.

    Attributes:
        model: the file that was sent out; model_sha256: its digest.
        history: those of the rounds before, the oldest first.
    """

    round: int
    model: Path
    model_sha256: bytes
    history: tuple[Path, ...]


@dataclass(frozen=True)
class Scored:
    """What the evidence says of a round: one assessment a submission, and the record that they rest on."""

    assessments: tuple[Assessment, ...]
    evidence: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Quality:
    """How a global model does, decimals of six places.

    Attributes:
        loss: the mean of the samples' losses, as the workload has them.
        accuracy: in [0, 1], of a classifier.
    """

    loss: str
    accuracy: str | None = None

    def figures(self) -> dict[str, str]:
        """Those that there are, by name."""
        return {"loss": self.loss} | ({} if self.accuracy is None else {"accuracy": self.accuracy})


class Scorer:
    """Scores one task's rounds and judges its global model.

    As it stands it is the paper's own: every model counts, at the degree that was claimed.
    """

    def __init__(self, data: LearnerData | None, model: str) -> None:
        self._data = data
        self._model = model

    def prepare(self, start: RoundStart) -> None:
        """Work that needs only the round's start model; done while the participants train."""

    def score(self, start: RoundStart, submissions: Sequence[Submission]) -> Scored:
        """Assesses a closed round. Submissions come in participant-id order."""
        return Scored(
            tuple(as_claimed(s.participant_id, s.model_sha256, s.claimed_degree) for s in submissions)
        )

    def evaluate(self, model: Path) -> Quality | None:
        """Quality of a global model on held-out samples, or on D_c where there are none; None without either."""
        if self._data is None:
            return None
        # Here, because it imports torch, and most commands need none.
        from fedpeer.learning.models import ARCHITECTURES
        from fedpeer.learning.training import evaluate

        if self._model not in ARCHITECTURES:
            return None  # a model of the learner's own
        data = self._data.test or self._data.validation
        found = evaluate(open_model(model).weights(), data, self._model)
        return Quality(f"{found.loss:.6f}", f"{found.accuracy:.6f}")


class ShadowModels(Scorer):
    """Degrees measured on D_c, against shadow models of known degree: `fedpeer.evidence`."""

    def __init__(self, data: LearnerData, row: TaskRow, report: "Report | None" = None) -> None:
        from fedpeer.evidence import EvidenceError, EvidenceTask, ShadowEvidence

        super().__init__(data, row.terms.recipe.model)
        self._task, self._round = row.id, 0
        shadows = row.settings["evidence"]["shadows"]
        pixels = data.validation.images[0].size
        try:
            self._evidence = ShadowEvidence(
                EvidenceTask.of_images(row.terms.recipe, data.validation, row.terms.reference),
                evidence_seed(row.root),
                shadows=shadows,
                executor=workers_for(row.terms.recipe, pixels, shadows),
                validation_sha256=row.terms.validation_commitment.hex(),
                scores=[row.terms.rule.name],
                report=report or self._report,
            )
        except EvidenceError as error:
            raise TaskError(f"task {row.id!r}: {error}") from None

    def prepare(self, start: RoundStart) -> None:
        self._ensemble(start)

    def score(self, start: RoundStart, submissions: Sequence[Submission]) -> Scored:
        found = self._evidence.assess(self._ensemble(start), submissions, _broadcasts(start))
        return Scored(found.assessments, found.record)

    def _report(self, trained: int, of: int) -> None:
        log.debug("shadow models trained", task=self._task, round=self._round, trained=trained, of=of)

    def _ensemble(self, start: RoundStart) -> "ShadowEnsemble":
        self._round = start.round
        return self._evidence.prepare(
            open_model(start.model).weights(), start.round, _broadcasts(start), start.model_sha256.hex()
        )


def _broadcasts(start: RoundStart) -> "list[Broadcast]":
    from fedpeer.evidence.assessing import Broadcast

    return [Broadcast(f"round {number}", path) for number, path in enumerate(start.history, 1)]


def merged_parts(scored: Scored, submissions: Sequence[Submission], most: int) -> dict[str, tuple[Path, int]]:
    """What of a round is merged: the files of the models that count, each with its samples, by participant id.

    Args:
        submissions: in files.
        most: samples of the recipe; one that overstates its own gets no more weight.
    """
    taken, parts = {a.participant_id for a in scored.assessments if a.scored}, {}
    for s in submissions:
        assert isinstance(s.model, Path), "models of a round are files"
        if s.participant_id in taken:
            parts[s.participant_id] = s.model, min(s.samples, most)
    return parts


def make_scorer(row: TaskRow, data: LearnerData | None = None, report: "Report | None" = None) -> Scorer:
    """The scorer that a task's terms ask for.

    Args:
        data: those that its settings name, where they are loaded already.
        report: takes how many shadows of a round are trained, and of how many; left out: the log.

    Raises:
        TaskError: the data are not those that the terms commit to, or no evidence can be had from them.
        LearningError: they are not to be had.
    """
    section = row.settings["data"]
    if data is None and section is not None:
        data = load_learner_data(DataSection(**section))
    commitment = commit_validation(None if data is None else data.validation, validation_salt(row.root))
    if commitment != row.terms.validation_commitment:
        raise TaskError(
            f"the data of task {row.id!r} are not those that its terms commit to; put the original ones back"
        )
    if not needs_evidence(row.terms.rule.name):
        return Scorer(data, row.terms.recipe.model)
    if data is None:
        raise TaskError(
            f"the rule {row.terms.rule.name!r} of task {row.id!r} pays on evidence, which needs the learner's data: "
            'add a [data] section, or choose rule.name = "paper"'
        )
    return ShadowModels(data, row, report)
