"""What the public ledger tells of a participant's data: no more than its degree and its payment do.

A market of six hundred on paper, whose evidence recovers the label shares well. An attacker has every byte of the
ledger and the true shares of three hundred participants, and predicts those of the others.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mechanism.affine import NANO
from mechanism.canonical import canonical_bytes
from mechanism.degree import noniid_degree
from mechanism.degree_map import DegreeMap, regressor_count
from mechanism.evidence import EvidenceModel, Measurement, QualityMap, assess
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.openings import subject_of
from mechanism.settlement import MICRO, task_budget_micro
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    commit_counts,
    sign_statement,
)
from mechanism.trees import Forest, Tree
from tests import ledger_samples as samples

PEOPLE, KNOWN, ROUNDS, SAMPLES = 600, 300, 2, 400

#: What the payment's entry and the verdict say of degree and payment, by the ends of their paths.
PAID_ON = ("verified_micro", "gross_micro", "penalty_micro", "fee_micro", "paid_micro", "withheld_micro")

#: More of the variance of label shares than degree and payment explain.
MARGIN = 0.02


class Published:
    """The ledger of a task of so many strata.

    Attributes:
        shares: true ones, a row a participant.
        entries: of the ledger.
    """

    def __init__(self, strata: int) -> None:
        chance = np.random.default_rng(strata)
        # A stratum is common, so that degree and payment do say something of the shares.
        weights = np.full(strata, 0.5)
        weights[0] = 1.5
        self.counts = [chance.multinomial(SAMPLES, row) for row in chance.dirichlet(weights, PEOPLE)]
        self.shares = np.array(self.counts) / SAMPLES
        self.names = samples.names(PEOPLE)
        plain = samples.terms(rounds=ROUNDS, capacity=PEOPLE)
        terms = replace(plain, reference=(Fraction(1, strata),) * strata)
        self.terms = replace(terms, budget_micro=task_budget_micro(terms))
        self.degrees = [noniid_degree([int(n) for n in own], terms.reference) for own in self.counts]
        self.entries = [*self._claims(), *(e for r in range(1, ROUNDS + 1) for e in self._round(r, chance))]

    def _claims(self) -> Iterator[Entry]:
        for name, counts, degree in zip(self.names, self.counts, self.degrees, strict=True):
            opening = ClaimOpening(Decimal("0.5"), degree, samples.salt(f"claim {name}"))
            statement = ClaimStatement(
                f"claim-{name}", "task", self.terms.digest, name, opening.digest,
                commit_counts([int(n) for n in counts], samples.salt(f"counts {name}")), bytes(32), samples.NONCE,
            )  # fmt: skip
            yield entries.claim(statement, sign_statement(statement, samples.private_key(name)), opening)

    def _round(self, number: int, chance: np.random.Generator) -> Iterator[Entry]:
        for name in self.names:
            opening = ModelOpening(SAMPLES, samples.salt(f"model {number} {name}"))
            statement = ModelStatement(
                f"m-{number}-{name}", "task", self.terms.digest, name, number,
                samples.model_digest("task", number, name), 64, opening.digest, bytes(32), samples.NONCE,
            )  # fmt: skip
            signature = sign_statement(statement, samples.private_key(name))
            yield entries.model(statement, signature, samples.sequence(number, name), False, opening)
        model, measured = _model(self.terms, number), self._measured(number, chance)
        judged = assess(model, measured)
        assert sum(a.scored for a in judged) > 0.9 * PEOPLE
        record: Any = {"model": model.record(), "measurements": [m.record() for m in measured]}
        yield from samples.judgement(self.terms, number, judged, json.loads(canonical_bytes(record)))
        draw = samples.draw_of(self.terms, number, self.names)
        yield from entries.settlement_entries(self.terms, number, draw, judged)[1]

    def _measured(self, number: int, chance: np.random.Generator) -> list[Measurement]:
        shown = self.shares + chance.normal(0, 0.02, self.shares.shape)
        alike = {
            name: other
            for one, two in chance.permutation(PEOPLE)[:60].reshape(-1, 2)
            for name, other in ((self.names[one], self.names[two]), (self.names[two], self.names[one]))
        }
        return [
            Measurement(
                participant_id=name,
                model_sha256=samples.model_digest("task", number, name).hex(),
                claimed_degree=self.degrees[place],
                order=samples.sequence(number, name),
                samples=SAMPLES,
                features=tuple((int(share * MICRO),) for share in shown[place]),
                norm=MICRO,
                alignment=int(chance.integers(100_000, 900_000)),
                novelty=MICRO,
                improvement=int(300_000 * shown[place, 0]),
                echo_distance=MICRO,
                echo_cosine=100_000,
                nearest_broadcast="this round",
                twins=((alike[name], 800_000, 500_000),) if name in alike else (),
                harm=int(chance.normal(0, 800_000)),
            )
            for place, name in enumerate(self.names)
        ]


def _model(terms: Any, number: int) -> EvidenceModel:
    """Shares are the features, the degree their distance from the reference, the quality a line of it."""
    strata = len(terms.reference)
    count = regressor_count(strata, 1, 0)
    line = [0] * count
    line[strata] = NANO
    degree = DegreeMap(
        reference=terms.reference, share_own=(NANO,), share_mean=(0,), share_intercept=0, sorted_columns=(),
        weights=tuple(2 * weight for weight in line), intercept=0, forest=Forest((Tree((-1,), (0,), (0,)),), count),
        half_width=40_000,
    )  # fmt: skip
    quality = QualityMap(tuple(-weight // 2 for weight in line), NANO)
    start = samples.global_model(terms, number - 1).hex()
    return EvidenceModel(
        number, start, samples.VALIDATION.hex(), "ab" * 32, 100, 0, degree, quality, samples.LIMITS, samples.LIKENESS
    )  # fmt: skip


@cache
def published(strata: int) -> Published:
    return Published(strata)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, list[float]]]:
    """Every place of a record and what stands there as numbers: of a text its bytes, of a list its length, too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        yield f"{path}.length", [len(value)]
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    elif isinstance(value, str):
        digits = re.fullmatch("(?:[0-9a-f]{2}){16,}", value)
        yield path, list(bytes.fromhex(value) if digits else value.encode())
    else:
        yield path, [-1.0 if value is None else float(value)]


def told(ledger: Published) -> dict[str, np.ndarray]:
    """What the ledger says of each participant, in groups by where it stands: a row a participant."""
    said: dict[str, dict[str, list[float]]] = {}
    for entry in ledger.entries:
        for name in _about(entry):
            if name in ledger.names:
                where = entry.id.replace(name, "NAME")
                for path, numbers in leaves(_own(entry, name), where):
                    said.setdefault(path, {})[name] = numbers
                said.setdefault(f"{where} bytes", {})[name] = [len(entry.data)]
    groups = {}
    for path, by_name in said.items():
        width = max(map(len, by_name.values()))
        rows = [by_name.get(name, []) for name in ledger.names]
        table = np.array([[*row, *[-1.0] * (width - len(row))] for row in rows])
        if (table != table[0]).any():
            groups[path] = table
    return groups


def _about(entry: Entry) -> list[str]:
    if entry.kind == "peers":
        return [name for name, _ in entry.body["draws"]]  # type: ignore[union-attr, misc]
    return [word for word in entry.id.split("/") if re.fullmatch("p[0-9]{3}", word)]


def _own(entry: Entry, name: str) -> Any:
    """Of a list, what stands there of one."""
    if entry.kind == "peers":
        peers = dict(entry.body["draws"])[name]  # type: ignore[call-overload]
        return {"peers": [int(peer[1:]) for peer in peers]}
    return json.loads(entry.data)["body"]


def explained(table: np.ndarray, shares: np.ndarray) -> float:
    """The larger R^2 of both learners on the participants whose shares the attacker does not know."""
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 5, 15)))
    forest = RandomForestRegressor(60, min_samples_leaf=5, max_features=0.5, random_state=0)
    scores = []
    for learner in (ridge, forest):
        learner.fit(table[:KNOWN], shares[:KNOWN])
        scores.append(learner.score(table[KNOWN:], shares[KNOWN:]))
    return float(max(scores))


def beside(groups: Mapping[str, np.ndarray], paths: Sequence[str]) -> np.ndarray:
    return np.hstack([groups[path] for path in paths])


@pytest.mark.parametrize("strata", [pytest.param(2, marks=pytest.mark.extended), 10])
def test_the_ledger_tells_no_more_of_label_shares_than_degree_and_payment(strata: int) -> None:
    ledger = published(strata)
    groups, shares = told(ledger), ledger.shares
    paid_on = [path for path in groups if path.endswith(PAID_ON)]
    assert len(paid_on) >= 3 * ROUNDS
    known = explained(beside(groups, paid_on), shares)
    found = {"everything": explained(beside(groups, list(groups)), shares)}
    kinds = {re.sub(r"/round/[0-9]+|\[[0-9]+\]", "", path) for path in groups if path not in paid_on}
    for kind in sorted(kinds):
        more = [path for path in groups if re.sub(r"/round/[0-9]+|\[[0-9]+\]", "", path) == kind]
        found[kind] = explained(beside(groups, [*paid_on, *more]), shares)
    assert len(kinds) > 15
    worse = {kind: score for kind, score in found.items() if score > known + MARGIN}
    assert not worse, (known, worse)


@pytest.mark.parametrize("strata", [2, 10])
def test_the_same_attacker_reads_the_shares_off_what_is_opened(strata: int) -> None:
    """So that it is the ledger that says nothing, and not the attacker that sees nothing."""
    ledger = published(strata)
    opened = {
        subject_of(e.id)[2]: e.opening["measurement"]["features"]  # type: ignore[index, call-overload]
        for e in ledger.entries
        if e.kind == "verdict" and e.opening is not None
    }
    table = np.array([np.array(opened[name]).ravel() for name in ledger.names], dtype=float)
    known = explained(beside(told(ledger), [p for p in told(ledger) if p.endswith(PAID_ON)]), ledger.shares)
    assert explained(table, ledger.shares) > max(0.85, known + 0.2)


def test_no_salt_sentence_figure_or_count_stands_in_the_ledger() -> None:
    ledger = published(10)
    log = b"\n".join(entry.data for entry in ledger.entries)
    some = ledger.names[::20]
    for name, counts in zip(some, ledger.counts[::20], strict=True):
        assert canonical_bytes([int(n) for n in counts]) not in log
        assert samples.salt(f"counts {name}").hex().encode() not in log
    for entry in ledger.entries:
        opening: Any = entry.opening
        if opening is None or subject_of(entry.id)[2] not in ("", *some):
            continue
        assert opening["salt"].encode() not in log
        for verdict in opening.get("assessment", {}).get("verdicts", ()):
            assert verdict["explanation"].encode() not in log
        if opening.get("measurement"):
            assert canonical_bytes(opening["measurement"]["features"]) not in log


def test_an_entry_of_evidence_is_as_short_whatever_was_measured() -> None:
    sizes = {
        kind: {len(e.data) for e in published(strata).entries if e.kind == kind}
        for strata in (2, 10)
        for kind in ("evidence", "claim", "model")
    }
    assert max(sizes["evidence"]) < 400
    assert max(sizes["claim"]) - min(sizes["claim"]) <= 10  # a signature's length
