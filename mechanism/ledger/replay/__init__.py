"""Replay: a ledger's entries in order, everything that they claim recomputed from what stands before them.

Of each task:

    terms         well-formed, their parts whole, budget covers the maximal bill, one reservation a round, together the
                  budget
    states        only the steps of `mechanism.lifecycle`, each with what it rests on, times never going back; claims
                  are taken until the places are, models until everybody is in or absent, each no shorter than the terms
                  say; disputes just as long
    statements    signed by an enrolled, unrevoked key; about these terms; claims in EFFORT, one a participant, of one
                  organisation no more than the terms allow; models one a participant and round, in time or marked late
    pseudonyms    of an open task whose terms ask for them, enrolled before, each in one task; there alone they claim,
                  and nobody else does
    key history   claims, models and payments carry the digest of every enrolment and revocation before them
    selection     everyone who claimed; whose key was revoked since may be left out
    evidence      there, unless the rule pays without; its shadows are of this round's start
    verdicts      one on each of the selected, on the model that it sent; tests in their order, and what follows from
                  them in clear; of those who sent nothing, that
    seeds         each the preimage of the one before, the first of the terms' commitment; none of them twice in a log
    shares        each model's draw share, late or not, is its round's value of the chain that the claim committed to
    settlements   `settle_round` on the outcomes, and on who has met whom in the task's rounds before, gives the same
                  peer draws and payments, byte for byte
    aggregations  one a settled round; the model that the next begins from
    disputes      once, after a settlement; awards only to those who have one, at most what a round pays
    audits        of those whom the round's key draws, in time; a verdict that fits its figures; appeals and ends in
                  their times
    measurings    of an ended task by the auditor of its terms, of all that its entries say was measured, before its
                  models are deleted; numbered; the outcome is that of the figures
    end           what is not settled is refunded, only where the task is cancelled; stakes are released,
                  and what is held for audits, or lost by who has failed one
    deletion      of submitted models, once, after the end, not before the time that the terms promise to keep them

Of the log:

    price         a credit has one, once terms have said it
    deposits      each once; no task reserves, and no withdrawal takes, more of a learner's than is there
    payouts       one run at a time; a line is all that is payable, in whole units of the currency, rounded down; a run
                  ends once and as a whole; what comes back is a line that was paid, once

Of what is opened (`mechanism.ledger.openings`):

    openings      each is what its entry commits to
    pseudonyms    an owner has one in a task
    evidence      about every model in time, this round's start, the D_c and the reference of the terms, the claims,
                  samples and logged order of commitments; the same figures for the same model
    verdicts      what `mechanism.evidence.assess` gives on it, every sentence; of one's own measurement alone all but
                  what it has in common with others; without evidence, as claimed. The outcome in clear is that of the
                  assessment
    disputes      counts are those behind the claim, of its degree; awards are what `review` gives
    audits        findings are signed by the auditor of the terms, about the round's start; the verdict is that of
                  `mechanism.audit_verdict.judge` on them, as far as claim, evidence and measurement are there

What a coordinator writes in one transaction must stand together: an opening, a selection, a settlement, an end, a run.
Most of it is computed, and compared byte for byte.

`world` has what the entries so far have made; the other modules have a function for each kind of entry, over that
world. State is kept for open tasks, accounts and participants; a closed task leaves its name, its seeds and the names
of its shadow sets, a payment what may come back. So memory grows with tasks, rounds and payouts, not with entries.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mechanism.errors import MechanismError
from mechanism.ledger import entries as events
from mechanism.ledger.accounts import Book
from mechanism.ledger.entry import Entry
from mechanism.ledger.errors import LedgerError
from mechanism.ledger.openings import subject_of
from mechanism.ledger.replay import audits, keys, money, payouts, rounds, statements, states
from mechanism.ledger.replay.comparing import Wrong, difference
from mechanism.ledger.replay.forms import check_body
from mechanism.ledger.replay.layouts import Said, entry_of, laid_out
from mechanism.ledger.replay.world import Counts, World
from mechanism.statements import RemeasurementStatement

__all__ = ["Counts", "Replay", "ReplayError"]

_HANDLERS: Mapping[str, Callable[[World, Entry, Mapping[str, Any]], None]] = {
    "terms": states.terms,
    "transition": states.transition,
    "deletion": states.deletion,
    "selection": states.selection,
    "closing": rounds.closing,
    "enrolment": keys.enrolment,
    "revocation": keys.revocation,
    "pseudonym": keys.pseudonym,
    events.LOG_KEY: keys.log_key,
    "claim": statements.claim,
    "model": statements.refused_model,
    "failure": statements.failure,
    "evidence": rounds.evidence,
    "verdict": rounds.refused_verdict,
    "aggregation": rounds.aggregation,
    "seed": money.seed,
    "dispute": money.dispute,
    "awards": money.awards,
    "award": money.award,
    "refund": money.ending,
    "stake_release": money.ending,
    "held_release": money.ending,
    "audit_loss": money.ending,
    "audit": audits.audit,
    "appeal": audits.appeal,
    "audit_end": audits.audit_end,
    "remeasurement": audits.remeasurement,
    "deposit": payouts.funding,
    "withdrawal": payouts.funding,
    "payout": payouts.payout,
    "payout_end": payouts.payout_end,
    "payout_return": payouts.payout_return,
}

#: Of the kinds that have a layout; such an entry without it is handled by what refuses it above.
_LAID_OUT: Mapping[str, Callable[[World, Entry, Said], None]] = {
    "model": statements.model,
    "verdict": rounds.verdict,
}


class ReplayError(LedgerError):
    """An entry that does not follow from those before it.

    Attributes:
        index: which one.
        reason: what is wrong with it.
    """

    def __init__(self, index: int, entry_id: str, reason: str) -> None:
        super().__init__(f"entry {index} ({entry_id}): {reason}")
        self.index = index
        self.entry_id = entry_id
        self.reason = reason


class Replay:
    """Feeds on entries in order.

    Args:
        check_statements: whether to check the participants' signatures, which takes much of the time.
        openings: those that are at hand, by entry id.
        reader: the participant whose they are; None: they are meant to be all.
    """

    def __init__(
        self,
        check_statements: bool = True,
        openings: Mapping[str, Mapping[str, Any]] | None = None,
        reader: str | None = None,
    ) -> None:
        self._world = World(check_statements, dict(openings or {}), reader)

    @property
    def book(self) -> Book:
        return self._world.book

    @property
    def counts(self) -> Counts:
        return self._world.counts

    @property
    def key_history(self) -> bytes:
        """Digest of the key history."""
        return self._world.key_history

    def feed(self, data: bytes) -> Entry:
        """Takes the next entry, and returns it.

        Raises:
            ReplayError: it is malformed or does not follow from those before it.
        """
        world, entry_id = self._world, "unreadable"
        try:
            entry = _computed(world, data)
            if entry is None:
                said = laid_out(data)
                entry = Entry.parse(data) if said is None else entry_of(said)
                entry_id = entry.id
                _take(world, entry, said)
            for transfer in entry.transfers:
                world.book.apply(transfer)
        except MechanismError as error:
            raise ReplayError(world.counts.entries, entry_id, str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            reason = "its body is not of the form that its kind has; expected that of docs/ledger-format.md"
            raise ReplayError(world.counts.entries, entry_id, reason) from None
        world.counts.entries += 1
        return entry

    def open_tasks(self) -> dict[str, str]:
        """Tasks that have not ended, and their states."""
        return {name: str(task.state or "") for name, task in sorted(self._world.tasks.items())}

    def knows(self, participant_id: str) -> bool:
        """Whether a participant of that name ever enrolled."""
        return participant_id in self._world.owners.values()

    def missing(self) -> dict[str, list[str]]:
        """The entries about the reader whose openings were not given, by task; with them those about nobody alone, of
        tasks in which it has some, once they have ended."""
        found = {}
        for task_id, own in self._world.own.items():
            took_part = any(subject_of(entry_id)[2] for entry_id in own)
            shown = task_id in self._world.ended
            left = [
                entry_id
                for entry_id, given in own.items()
                if not given and (shown or subject_of(entry_id)[2])
            ]
            if took_part and left:
                found[task_id] = left
        return found

    def remeasured(self) -> dict[str, RemeasurementStatement]:
        """What auditors have said last of tasks that they measured again."""
        return dict(self._world.remeasured)

    def unmet(self) -> tuple[list[str], dict[str, int]]:
        """Entries that openings were given for and that were not fed: ids of those that cannot come any more, since
        their task has ended, and by task how many may, as in an older copy."""
        left = [(name, name.partition("/")[0]) for name in sorted(self._world.openings)]
        newer = Counter(task for _, task in left if task not in self._world.ended)
        return [name for name, task in left if task in self._world.ended], dict(newer)

    def finish(self) -> None:
        """Raises ReplayError where the entries end inside what is written in one transaction."""
        if (begun := self._world.transaction) is not None:
            reason = f"the {begun.what} of {begun.task_id} ends early: {begun.next} is missing"
            raise ReplayError(self._world.counts.entries, begun.next, reason)


def _computed(world: World, data: bytes) -> Entry | None:
    """The next entry, where `data` are the bytes that what stands before it gives: then they need not be read."""
    begun = world.transaction
    if begun is None or not begun.expected or begun.expected[0].data != data:
        return None
    entry = begun.expected.popleft()
    world.count(entry)
    if not begun.expected and not begun.then:
        world.transaction = None
    return entry


def _take(world: World, entry: Entry, said: Said | None) -> None:
    begun = world.transaction
    if begun is not None and begun.expected:
        raise Wrong(f"in the {begun.what} of {begun.task_id}: {difference(entry, begun.expected[0])}")
    if begun is not None and entry.id not in begun.then:
        raise Wrong(f"it interrupts the {begun.what} of {begun.task_id}; expected {begun.next} here")
    if said is not None:
        _LAID_OUT[entry.kind](world, entry, said)
        return
    handler = _HANDLERS.get(entry.kind)
    if handler is None:
        raise Wrong(f"the kind {entry.kind!r:.60} is unknown, or out of place here")
    check_body(entry)
    handler(world, entry, entry.body)
