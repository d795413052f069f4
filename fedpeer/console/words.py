"""Figures in words: amounts, times and degrees as pages show them, with the exact value behind."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from itertools import takewhile

from markupsafe import Markup

from coordinator.task_text import time_left
from mechanism.settlement import MICRO

#: What each state means to somebody who has not read the protocol.
STATES = {
    "OPEN": "published; claims are about to be taken",
    "EFFORT": "participants claim how well their data fit",
    "SELECTED": "those who train are chosen",
    "TRAINING": "participants train and send their models",
    "SCORED": "the round is closed; evidence is computed",
    "SETTLED": "the round is paid",
    "CLOSED": "all rounds are paid and stakes released",
    "CANCELLED": "ended early; what was not paid is refunded",
}


#: What each kind of entry of the ledger records; others are called as they are.
KINDS = {
    "terms": "the terms of a task",
    "reservation": "the budget of a task, reserved",
    "refund": "what goes back of a budget",
    "enrolment": "a participant's key",
    "revocation": "the end of a participant's key",
    "pseudonym": "a name for one task",
    "claim": "a claim",
    "selection": "who trains",
    "model": "a model that came in",
    "failure": "word that no model comes",
    "transition": "a step of a task",
    "closing": "the end of a round",
    "evidence": "evidence of a round",
    "verdict": "what the checks found of a participant",
    "seed": "the operator's part in a draw",
    "peers": "the draw of peers",
    "settlement": "what a round costs",
    "payment": "what a round pays a participant",
    "aggregation": "the next model",
    "dispute": "counts that were opened",
    "awards": "what disputes come to",
    "award": "what a dispute pays",
    "stake_release": "a stake that goes back",
    "payout": "the beginning of a payout",
    "payout_line": "a payment of a payout",
    "payout_end": "the end of a payout",
    "payout_resolved": "a payment that has ended",
    "payout_return": "a payment that came back",
    "remeasurement": "what an auditor says of a task",
    "deposit": "what a learner paid in",
    "withdrawal": "what a learner got back",
    "log_key": "a new key of the log",
}


def kind(name: str) -> str:
    """What a kind of entry records, in a few words."""
    return KINDS.get(name, name.replace("_", " "))


#: What becomes of an audit, to somebody who has not read the protocol.
AUDIT_STAGES = {
    "open": "the auditor is awaited",
    "failed": "failed; an appeal is possible",
    "appealed": "appealed; the second audit is awaited",
    "released": "over: the pay in question is released",
    "convicted": "failed for good: the pay in question goes back",
    "refunded": "not held: the pay in question goes back",
}


def audit_stage(name: str) -> str:
    """How an audit stands, in a few words."""
    return AUDIT_STAGES[name]


def plainly(explanation: str, figures: Mapping[str, object]) -> str:
    """A check's sentence without the clauses that have numbers in them; as it is where it rests on no figures, or
    nothing would be left.

    "The model is the broadcast model again: its distance is 0.000118. Train on your own data." is "The model is the
    broadcast model again. Train on your own data."
    """
    if not figures:
        return explanation
    kept = []
    for sentence in re.split(r"(?<=\.)\s+", explanation):
        clauses = re.split(r"(?<=[:;,])\s+", sentence.removesuffix("."))
        words = list(takewhile(lambda clause: not re.search(r"\d", clause), clauses))
        if any(words):
            kept.append(" ".join(words).rstrip(":;,") + ".")
    return " ".join(kept) or explanation


def state_sentence(state: str) -> str:
    """What a state means, in a few words."""
    return STATES.get(state, state)


def rounded_credits(micro: int, places: int = 2) -> str:
    """Micro-credits as credits, rounded, such as "1,234.57"; ties to even. What rounds to nothing has no sign."""
    rounded = (Decimal(micro) / MICRO).quantize(Decimal(1).scaleb(-places), ROUND_HALF_EVEN)
    return f"{rounded if rounded else abs(rounded):,}"


def money(micro: int, places: int = 2) -> Markup:
    """Credits with two decimals, or `places`; the exact amount is the value, in micro-credits, and the title."""
    shown = [rounded_credits(micro, decimals).replace("-", "−") for decimals in (6, places)]
    return Markup('<data class="money" value="{}" title="{} credits">{}</data>').format(micro, *shown)


def exact_credits(text: str) -> Markup:
    """Credits that are no whole micro-credits, with two decimals and all of them as title."""
    return Markup('<data value="{}" title="{} credits">{}</data>').format(
        text, text, rounded_credits(int(Decimal(text) * MICRO))
    )


def when(seconds: float | None) -> Markup:
    """A time, UTC, to the minute; the second is its title."""
    if seconds is None:
        return Markup("–")
    moment = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{moment:%Y-%m-%d %H:%M:%S} UTC", f"{moment:%Y-%m-%d %H:%M} UTC"
    )


def countdown(deadline: float | None, now: float) -> Markup:
    """How long there is, which the script counts down; empty where no deadline runs."""
    if deadline is None:
        return Markup("")
    return Markup('<span class="countdown" data-deadline="{}">{}</span>').format(
        deadline, time_left(deadline, now)
    )


def degree(text: str | int | None) -> Markup:
    """A degree to four places with the exact one as title: a rational's text, empty where it was erased, or
    millionths."""
    if text is None:
        return Markup('<span class="none">not scored</span>')
    if text == "":
        return Markup('<span class="none">erased</span>')
    exact = Fraction(text, MICRO) if isinstance(text, int) else Fraction(text)
    return Markup('<data value="{}" title="{}">{}</data>').format(exact, exact, f"{float(exact):.4f}")


def share(text: str | float | None) -> str:
    """An accuracy as a percentage."""
    return "–" if text is None else f"{float(text):.1%}"


def duration(seconds: float | None) -> str:
    """ "2 h 5 min", without what is too small to matter."""
    if seconds is None:
        return "–"
    first, *rest = time_left(seconds, 0).removesuffix(" left").split(" ", 2)
    unit, more = rest[0], rest[1:]
    return " ".join([first, unit, *(part for part in more if not part.startswith("0 "))])
