"""The example ledger of docs/ledger-format.md, and every value that the page computes from it.

    python -m tests.conformance.example      # writes docs/ledger-example*.jsonl and the page's values anew

A block of the page that is fenced as `worked` has one value a line, `name = value`. The example is made by the code
that writes ledgers; its keys and secrets are fixed, so every byte is the same in every run.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from mechanism.affine import NANO, affine
from mechanism.audit import conformal_limit
from mechanism.canonical import canonical_bytes
from mechanism.degree import noniid_degree
from mechanism.degree_map import DegreeMap, regressor_count
from mechanism.dispute import review
from mechanism.evidence import EvidenceModel, Measurement, Overlaps, QualityMap, assess
from mechanism.ledger import entries
from mechanism.ledger.entry import Entry
from mechanism.ledger.key_history import NO_KEYS, keys_after
from mechanism.ledger.merkle import leaf_hash, node_hash, tree_root
from mechanism.ledger.note import Checkpoint, SigningKey, sign_checkpoint
from mechanism.ledger.openings import Openings
from mechanism.ledger.tiles import bundle_path, pack_bundle, tile_path
from mechanism.payment import Log as Payment
from mechanism.peers import Draw, draw_head, draw_share, round_seed, seed_commitment
from mechanism.price import Price
from mechanism.sample_tree import samples_root
from mechanism.settlement import (
    MICRO,
    Assessment,
    RoundSettlement,
    largest_remainder,
    max_payment_micro,
    peer_payment,
    settle_round,
    task_budget_micro,
    weight_micro,
)
from mechanism.statements import commit_counts
from mechanism.trees import Forest, Tree
from mechanism.workload import Labels
from tests import ledger_samples as samples
from tests.ledger_histories import AUDIT, DIFFERENCES, SALT, SHAPES, History, Log, Shape, played

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, LEDGER = DOCS / "ledger-format.md", DOCS / "ledger-example.jsonl"
OPENINGS = DOCS / "ledger-example-openings.jsonl"

FIRST = SigningKey("example.com/fedpeer", 1, bytes(range(32)))
SECOND = SigningKey("example.com/fedpeer", 1, bytes(range(1, 33)))

#: Five participants, two rounds, two peers each. p002 sends its first model late, p003 keeps its counts private and
#: opens them, p001's second claim is refuted, and p000's first model harms the aggregate. In the first round p003 and
#: p004 have samples in common; in the second p000, p002 and p004 have, which are linked as a group and not by pairs,
#: and there is a map to the distinct samples. A learner has paid in the budget. Four are paid out, of which one payment
#: comes back; a second run is withdrawn.
PRICE = Price(Decimal("0.75"), "EUR", 2)
SHAPE = Shape(
    task_id="demo",
    people=5,
    refuted={2: "p001"},
    absent={1: {"p002": "no disk"}},
    late=frozenset({(1, "p002")}),
    private=frozenset({"p003"}),
    price=PRICE,
    funder="trust",
)


#: Likeness and r of pairs of round 1, and of round 2.
PAIR = {("p003", "p004"): (800_000, 740_000)}
GROUP = {
    ("p000", "p002"): (530_000, 250_000),
    ("p000", "p004"): (520_000, 333_333),
    ("p002", "p004"): (590_000, 500_000),
}


class Example:
    """The ledger with what it is made from."""

    def __init__(self) -> None:
        log = Log()
        for name in samples.names(SHAPE.people):
            log.enrol(name)
        task = self.task = History(log, SHAPE)
        terms = replace(task.terms, payment=Payment(Decimal("1.25")))
        richer = replace(terms, rule=replace(terms.rule, peers=2))
        self.terms = task.terms = replace(richer, budget_micro=task_budget_micro(richer) + 1)
        self.judged: dict[int, list[Assessment]] = {}
        self.settled: dict[int, RoundSettlement] = {}
        task.begin()
        for number in (1, 2):
            self._round(number)
            if number == 1:
                self.rotated = len(log.entries)
                keys = FIRST.verification_key, SECOND.verification_key
                log.write(entries.log_key(1, *keys))
        task.finish()
        self.owed = {name: log.free(name) for name in task.people}
        log.pay_out(1, PRICE, task.people[:4])
        log.end_run(1)
        log.return_payment(1, "p001")
        log.pay_out(2, PRICE, ["p001", "p004"])
        log.end_run(2, entries.WITHDRAWN, "the bank has refused the file")
        self.entries = log.entries
        self.data = [entry.data for entry in self.entries]

    def _round(self, number: int) -> None:
        task = self.task
        task.train()
        task.deliver()
        record = task.evidence()
        if number == 1:
            record["measurements"][0]["harm"] = 1_500_000
            samples.in_common(record, PAIR)
        else:
            samples.in_common(record, GROUP, outside=20_000)
            # By the distance from the reference, and little by the straying and the length.
            weights = [0, 0, 0, 0, 625_000_000, *[0] * 11, 20_000_000, -10_000_000]
            record["model"]["distinct"] = [
                {"weights": weights, "intercept": 990_000_000},
                {"weights": [0] * 18, "intercept": 1_000_000_000},
            ]
        task.judge(record)
        self.judged[number] = task.judged
        draw, stakes = self.draw(number), task.stakes()
        self.settled[number] = settle_round(
            self.terms, number, draw, task.judged, stakes, meetings=task.meetings
        )
        task.pay()
        task.aggregate()
        task.enter(entries.State.SETTLED)

    def draw(self, number: int) -> Draw:
        sent = list(self.task.models[number])
        return Draw(
            round_seed(samples.SECRET, 2, number), {name: self.task.share(name, number) for name in sent}
        )

    def openings(self) -> Openings:
        """All that the entries commit to."""
        return Openings(None, samples.openings_of(self.entries))

    def opening(self, id_: str) -> str:
        """What an entry commits to, in canonical form."""
        return canonical_bytes(self.openings().by_id[id_]).decode()

    def find(self, id_: str) -> Entry:
        return next(entry for entry in self.entries if entry.id == id_)

    def index(self, id_: str) -> int:
        return next(index for index, entry in enumerate(self.entries) if entry.id == id_)

    def head(self, size: int, *signers: SigningKey) -> str:
        checkpoint = Checkpoint(FIRST.name, size, tree_root([leaf_hash(data) for data in self.data[:size]]))
        note = sign_checkpoint(checkpoint, signers[0])
        for signer in signers[1:]:
            note = note.with_signature(sign_checkpoint(checkpoint, signer).signatures[0])
        return str(note)

    def opened(self) -> bytes:
        """The auditor's file of openings."""
        return b"".join(line + b"\n" for line in self.openings().lines())

    @property
    def heads(self) -> dict[int, str]:
        handed = self.rotated + 1
        return {
            3: self.head(3, FIRST),
            handed: self.head(handed, FIRST, SECOND),
            len(self.data): self.head(len(self.data), SECOND),
        }

    def lines(self) -> bytes:
        """The ledger as JSON lines."""
        heads = self.heads
        made = [canonical_bytes({"format": "fedpeer-ledger/1", "key": str(FIRST.verification_key)})]
        for size, data in enumerate(self.data, 1):
            made.append(data)
            if size in heads:
                made.append(canonical_bytes({"head": heads[size]}))
        return b"\n".join(made) + b"\n"


@cache
def example() -> Example:
    return Example()


def worked() -> Mapping[str, str]:
    """Every value on the page, by name."""
    made = example()
    return {
        name: text
        for part in (
            _form,
            _tree,
            _keys,
            _terms,
            _statements,
            _draw,
            _money,
            _verdicts,
            _disputes,
            _payouts,
            _accounts,
            _audits,
        )
        for name, text in part(made).items()
    }


def _form(made: Example) -> dict[str, str]:
    value: Any = {"é": "\u20ac\n", "b": [1, True, None], "a": "7.5", "\U0001f600": 0, "\ufb33": -3}
    first = made.entries[0]
    return {
        "canonical": canonical_bytes(value).hex(),
        "entry 0": first.data.decode(),
        "bytes of entry 0": str(len(first.data)),
        "part": str(entries.PART_BYTES),
    }


def _tree(made: Example) -> dict[str, str]:
    leaves = [leaf_hash(data) for data in made.data]
    head = made.heads[3]
    text, _, signatures = head.rpartition("\n\n")
    return {
        "leaf hash of entry 0": leaves[0].hex(),
        "leaf hash of entry 1": leaves[1].hex(),
        "leaf hash of entry 2": leaves[2].hex(),
        "node over entries 0 and 1": node_hash(leaves[0], leaves[1]).hex(),
        "root of the first 3": tree_root(leaves[:3]).hex(),
        "entries": str(len(leaves)),
        "root of all": tree_root(leaves).hex(),
        "root of none": hashlib.sha256(b"").hexdigest(),
        "first key": str(FIRST.verification_key),
        "second key": str(SECOND.verification_key),
        "signed text": json.dumps(text + "\n"),
        "signature line": signatures.rstrip("\n"),
        "payload of the signature": base64.b64decode(signatures.split()[2]).hex(),
        "index of the new key": str(made.rotated),
        "new key": made.data[made.rotated].decode(),
        "tile 0/0": tile_path(0, 0, len(leaves)),
        "bundle 0": bundle_path(0, len(leaves)),
        "tile 1/1234067": tile_path(1, 1_234_067, 256),
        "bundle begins": pack_bundle(made.data[:1])[:12].hex(),
    }


def _keys(made: Example) -> dict[str, str]:
    body: Any = made.entries[0].body
    spki = base64.b64decode(body["public_key"])
    digests, keys = {}, NO_KEYS
    for index, entry in enumerate(made.entries[:5]):
        keys = keys_after([entry], keys, index)
        digests[f"k_{index + 1}"] = keys.hex()
    return {
        "public key of p000": spki.hex(),
        "sha256 of the key": hashlib.sha256(spki).hexdigest(),
        "fingerprint": made.entries[0].id.rpartition("/")[2],
        **digests,
    }


def _terms(made: Example) -> dict[str, str]:
    terms, brought = made.terms, samples.brought(Labels()).record()
    return {
        "terms": canonical_bytes(terms.record()).decode(),
        "digest of the terms": terms.digest.hex(),
        "recipe of a factory": canonical_bytes(brought["recipe"]).decode(),
        "columns of a table": canonical_bytes(brought["columns"]).decode(),
        "arrays of its samples": canonical_bytes(brought["arrays"]).decode(),
        **{
            f"strata by {kind.name}": canonical_bytes(samples.brought(kind).record()["strata"]).decode()
            for kind in samples.STRATA
            if kind != Labels()
        },
        "most a round pays one": str(max_payment_micro(terms.Q, terms.upsilon, terms.payment.exact)),
        "maximal bill": str(task_budget_micro(terms)),
        "reserved for round 1": str(entries.reserved_micro(terms, 1)),
        "reserved for round 2": str(entries.reserved_micro(terms, 2)),
        "reservation": made.find("demo/round/1/reservation").data.decode(),
    }


def _statements(made: Example) -> dict[str, str]:
    claim: Any = made.find("demo/claim/p001/claim-p001").body
    model: Any = made.find("demo/round/1/model/p001/model-1-p001").body
    message = canonical_bytes(claim["statement"])
    opened: Any = {"counts": list(made.task.counts("p003")), "salt": SALT.hex()}
    return {
        "claim of p001": message.decode(),
        "sha256 of the claim": hashlib.sha256(message).hexdigest(),
        "signature of the claim": claim["signature"],
        "degree of 6 and 4": str(noniid_degree((6, 4), made.terms.reference)),
        "opening of the claim": made.opening("demo/claim/p001/claim-p001"),
        "opening of the model": made.opening("demo/round/1/model/p001/model-1-p001"),
        "counts of p003": canonical_bytes(opened).decode(),
        "commitment of p003": commit_counts(made.task.counts("p003"), SALT).hex(),
        "model of p001": canonical_bytes(model["statement"]).decode(),
        "closing of round 1": made.find("demo/round/1/closing/1").data.decode(),
    }


def _draw(made: Example) -> dict[str, str]:
    terms, draw = made.terms, made.draw(1)
    secret = samples.share_secret(terms, "p000")
    label = b"fedpeer peer draw v2"
    message = label + len(b"p000").to_bytes(2, "big") + b"p000" + bytes(8)
    block = hmac.digest(draw.key, message, "sha256")
    words = [int.from_bytes(block[i : i + 8], "big") for i in range(0, 32, 8)]
    lines = made.settled[1].payments
    return {
        "secret s": samples.SECRET.hex(),
        "seed of round 2": round_seed(samples.SECRET, 2, 2).hex(),
        "seed of round 1": round_seed(samples.SECRET, 2, 1).hex(),
        "seed commitment": seed_commitment(samples.SECRET, 2).hex(),
        "secret x of p000": secret.hex(),
        "share of p000 in round 1": draw_share(secret, 2, 1).hex(),
        "draw head of p000": draw_head(secret, 2).hex(),
        "shares of round 1": draw.record.decode(),
        "digest of the shares": draw.digest.hex(),
        "draw key": draw.key.hex(),
        "message of p000": message.hex(),
        "block of p000": block.hex(),
        "words of p000": " ".join(map(str, words)),
        "places of p000": " ".join(str(i + word % (4 - i)) for i, word in enumerate(words)),
        "order of p000": " ".join(draw.order("p000")),
        **{f"peers of {line.participant_id}": " ".join(line.peers) or "none" for line in lines},
        "order of p000 in round 2": " ".join(made.draw(2).order("p000")),
        **{
            f"peers of {line.participant_id} in round 2": " ".join(line.peers) or "none"
            for line in made.settled[2].payments
        },
    }


def _money(made: Example) -> dict[str, str]:
    terms, settlement = made.terms, made.settled[1]
    judged = {a.participant_id: a for a in made.judged[1]}
    by_name = {line.participant_id: line for line in settlement.payments}
    found: dict[str, str] = {}
    degrees = {
        n: Fraction(a.verified_micro, MICRO) for n, a in judged.items() if a.verified_micro is not None
    }
    for peer in by_name["p000"].peers:
        found[f"p000 against {peer}"] = str(peer_payment(terms, degrees["p000"], degrees[peer]))
    for name, line in by_name.items():
        found[f"line of {name}"] = (
            f"gross {line.gross_micro} penalty {line.penalty_micro} fee {line.fee_micro} paid {line.paid_micro} "
            f"withheld {line.withheld_micro} lost {line.stake_lost_micro}"
        )
    last = {line.participant_id: line for line in made.settled[2].payments}["p001"]
    thirds = {name: Decimal("0.0000015") for name in ("a", "b", "c")}
    uneven = {"a": Decimal("1.0000002"), "b": Decimal("0.0000007"), "c": Decimal("0.0000007")}
    return {
        **found,
        "multiplier of p000": str(judged["p000"].multiplier_ppm),
        "weight of p003": str(weight_micro(terms, judged["p003"])),
        "weight of p001 in round 2": str(
            weight_micro(terms, next(a for a in made.judged[2] if a.participant_id == "p001"))
        ),
        "weight of 2.5 holders and 0.68 of the samples": str(
            weight_micro(terms, replace(judged["p003"], holders_micro=2_500_000, distinct_micro=680_000))
        ),
        "rounding of round 1": str(settlement.rounding_micro),
        "total of round 1": str(settlement.total_micro),
        "settlement of round 1": made.find("demo/round/1/settlement").data.decode(),
        "payment of p003": made.find("demo/round/1/payment/p003").data.decode(),
        "line of p001 in round 2": (
            f"gross {last.gross_micro} penalty {last.penalty_micro} fee {last.fee_micro} paid {last.paid_micro} "
            f"withheld {last.withheld_micro} lost {last.stake_lost_micro}"
        ),
        "three of 1.5 micro-credits": _shared(thirds),
        "1000000.2, 0.7 and 0.7 micro-credits": _shared(uneven),
    }


def _shared(amounts: Mapping[str, Decimal]) -> str:
    paid, rounding = largest_remainder(amounts)
    return " ".join(f"{name} {paid[name]}" for name in sorted(paid)) + f" rounding {rounding}"


def _verdicts(made: Example) -> dict[str, str]:
    first, second = (_evidence_of(made, number) for number in (1, 2))
    model = EvidenceModel.from_record(first["model"])
    one = next(m for m in first["measurements"] if m["participant_id"] == "p003")
    maps = model.degree, model.quality
    return {
        "evidence of round 1": made.find("demo/round/1/evidence").data.decode(),
        "salt of the evidence": made.openings().by_id["demo/round/1/evidence"]["salt"],
        "start of round 1": first["model"]["start_sha256"],
        "start of round 2": second["model"]["start_sha256"],
        "degree of round 1": canonical_bytes(first["model"]["degree"]).decode(),
        "quality of round 1": canonical_bytes(first["model"]["quality"]).decode(),
        "distinct of round 2": canonical_bytes(second["model"]["distinct"]).decode(),
        "likeness of round 1": canonical_bytes(first["model"]["likeness"]).decode(),
        "thresholds of round 1": canonical_bytes(first["model"]["thresholds"]).decode(),
        "measurement of p003": canonical_bytes(one).decode(),
        **{f"{name} of p003": value for name, value in _mapped(*maps, one["features"]).items()},
        **_other_map(),
        **_common(made),
        "assessment of p000": _assessment(made.judged[1], "p000"),
        "assessment of p003": _assessment(made.judged[1], "p003"),
        "assessment of p001 in round 2": _assessment(made.judged[2], "p001"),
        "verdict of p002": made.find("demo/round/1/verdict/p002").data.decode(),
        "opening of the verdict of p002": made.opening("demo/round/1/verdict/p002"),
        "verdict of p003": made.find("demo/round/1/verdict/p003").data.decode(),
        "salt of the verdict of p003": made.openings().by_id["demo/round/1/verdict/p003"]["salt"],
        "outcome of p000": _outcome(made, 1, "p000"),
        "outcome of p001 in round 2": _outcome(made, 2, "p001"),
        **_sentences(model, Measurement.from_record(one)),
    }


def _common(made: Example) -> dict[str, str]:
    """What p003 and p004 have in common in round 1, and the group in round 2."""
    found = {}
    for number, pairs in ((1, PAIR), (2, GROUP)):
        record = _evidence_of(made, number)
        model = EvidenceModel.from_record(record["model"])
        measured = {m.participant_id: m for m in map(Measurement.from_record, record["measurements"])}
        overlaps = Overlaps(model, measured)
        for one, other in pairs:
            likeness, r = pairs[one, other]
            apart, same = model.likeness.usual(r)
            found[f"{one} and {other}" + " in round 2" * (number == 2)] = (
                f"l {likeness} r {r} apart {apart} same {same} common {overlaps.part(one, other, likeness, r)}"
            )
    members = sorted({name for pair in GROUP for name in pair})
    named: Any = {"group": measured["p004"].group, "outside": measured["p004"].outside}
    return {
        **found,
        "group of p004 in round 2": canonical_bytes(named).decode(),
        "sum over its pairs": str(overlaps.beyond(members)),
        "holders of its members": " ".join(str(overlaps.holders(name)[0]) for name in members),
    }


def _evidence_of(made: Example, number: int) -> Any:
    """`{"model", "measurements"}` of a round, from the openings."""
    opened: Any = made.openings().by_id
    verdicts = [opened[e.id] for e in made.entries if e.id.startswith(f"demo/round/{number}/verdict/")]
    measured = [one["measurement"] for one in verdicts if one["measurement"] is not None]
    return {"model": opened[entries.evidence_id("demo", number)]["model"], "measurements": measured}


def _assessment(judged: Sequence[Assessment], name: str) -> str:
    [found] = [a for a in judged if a.participant_id == name]
    return canonical_bytes(entries.assessment_record(found)).decode()


def _outcome(made: Example, number: int, name: str) -> str:
    return canonical_bytes(made.find(f"demo/round/{number}/verdict/{name}").body["outcome"]).decode()


def _mapped(degree: DegreeMap, quality: QualityMap, features: Sequence[Sequence[int]]) -> dict[str, str]:
    """Every step from features to the degree and the quality."""
    z = degree.regressors(features)
    return {
        "features": canonical_bytes([list(row) for row in features]).decode(),
        "shares": " ".join(map(str, degree.shares(features))),
        "regressors": " ".join(map(str, z)),
        "line of z": str(Fraction(affine(degree.weights, degree.intercept, z), NANO)),
        "forest": str(degree.forest(z)),
        "estimate": str(degree.degree_of(z)),
        "quality": str(quality.quality_micro(z)),
    }


def _other_map() -> dict[str, str]:
    """Three strata and three features, with numbers that are of no use but to be computed with."""
    strata, columns, ordered = 3, 3, (2, 0)
    count = regressor_count(strata, columns, len(ordered))
    trees = (
        Tree((20, 4, -1, -1, -1), (270_000, 80_000, 130_001, 240_000, 410_000), (4, 3, 0, 0, 0)),
        Tree((-1,), (200_000,), (0,)),
        Tree((9, -1, -1), (0, 330_000, 90_000), (2, 0, 0)),
    )
    degree = DegreeMap(
        reference=(Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)),
        share_own=(700_000_000, -40_000_000, 12_345_678),
        share_mean=(-120_000_000, 3_000_000, 0),
        share_intercept=110_000_000,
        sorted_columns=ordered,
        weights=tuple((i * 37 % 23 - 11) * 10_000_019 for i in range(count)),
        intercept=298_765_432,
        forest=Forest(trees, count),
        half_width=61_803,
    )
    quality = QualityMap(tuple((i * 29 % 23 - 11) * 7_000_003 for i in range(count)), 812_345_678)
    record: Any = {"weights": list(quality.weights), "intercept": quality.intercept}
    return {
        "degree": canonical_bytes(degree.record()).decode(),
        "quality map": canonical_bytes(record).decode(),
        **_mapped(degree, quality, ((812_345, -20_001, 6), (-90_120, 400_300, 5), (300_007, 12, -7_000))),
    }


def _sentences(model: EvidenceModel, one: Measurement) -> dict[str, str]:
    """What one participant would read, had it been measured otherwise."""

    def read(screen: str, changes: Mapping[str, Any], *others: Measurement, **of_model: Any) -> str:
        found = assess(replace(model, **of_model), [replace(one, **changes), *others])[-1]
        return next(v.explanation for v in found.verdicts if v.screen == screen)

    earlier = replace(one, participant_id="p000", order=1, model_sha256="ab" * 32)
    untrained = {"norm": 0, "alignment": -250_000, "novelty": 7_500_000, "improvement": -1_000_000}
    return {
        "a fault": read("contract", {"fault": "it has no tensor w"}),
        "the broadcast again": read("echo", {"echo_distance": 12_345}),
        "the coordinator's step": read("echo", {"echo_cosine": 999_000}),
        "not trained": read("trained", untrained),
        "samples of p000": read("overlap", {"twins": (("p000", 700_000, 680_000),)}, earlier),
        "few samples, the intercept of the quality 0.6": read(
            "samples", {}, quality=replace(model.quality, intercept=600_000_000)
        ),
        "a quality_full of 0": read(
            "samples", {}, thresholds=replace(model.thresholds, quality_full=0, quality_none=-1)
        ),
        "harmful": read("contribution", {"harm": 1_250_000}),
        "claims 0.2": read("claim", {"claimed_degree": Fraction(1, 5)}),
        "an interval of 0.4": read("claim", {}, degree=replace(model.degree, half_width=400_000)),
    }


def _disputes(made: Example) -> dict[str, str]:
    judged = {a.participant_id: a for a in made.judged[1]}
    line = next(p for p in made.settled[1].payments if p.participant_id == "p003")
    about = judged["p003"]
    found = review(made.terms, about, [judged[n] for n in line.peers], line.paid_micro)
    kept = entries.kept_micro(made.terms, 1, made.settled[1])
    return {
        "interval of p003": f"{about.lower_micro} to {about.upper_micro}",
        "claimed by p003": str(about.claimed_degree),
        "paid to p003": str(line.paid_micro),
        "award of p003": str(found.award_micro),
        "kept of round 1": str(kept),
        "dispute of p003": made.find("demo/dispute/p003").data.decode(),
        "awards of round 1": made.find("demo/round/1/awards").data.decode(),
        "award entry": made.find("demo/round/1/award/p003").data.decode(),
        "release": made.find("demo/stake/p003/release").data.decode(),
    }


def _payouts(made: Example) -> dict[str, str]:
    line: Any = made.find("payout/1/line/p000").body
    owed = made.owed["p000"]
    return {
        "deposit": made.find("learner:trust/deposit/for-demo").data.decode(),
        "p000 is owed": str(owed),
        "units of p000": str(line["units"]),
        "micro-credits of p000": str(line["micro"]),
        "p000 is still owed": str(owed - line["micro"]),
        "run 1": made.find("payout/1/1").data.decode(),
        "line of p000 in run 1": made.find("payout/1/line/p000").data.decode(),
        "end of run 1": made.find("payout/1/end").data.decode(),
        "p000 is paid": made.find("payout/1/resolved/p000").data.decode(),
        "payment of p001 comes back": made.find("payout/1/returned/p001").data.decode(),
        "end of run 2": made.find("payout/2/end").data.decode(),
        "p004 is not paid": made.find("payout/2/resolved/p004").data.decode(),
        **{
            f"{micro} micro-credits at {amount} {currency}": (
                f"{price.units(micro)} units, {price.micro(price.units(micro))}"
            )
            for micro, amount, currency, places in (
                (1_999_999, "1", "JPY", 0), (13_334, "0.75", "EUR", 2), (13_333, "0.75", "EUR", 2),
                (1, "2.5", "KWD", 3),
            )
            for price in [Price(Decimal(amount), currency, places)]
        },
    }  # fmt: skip


def _audits(made: Example) -> dict[str, str]:
    key = bytes.fromhex(str(made.find("demo/round/1/peers/1").body["key"]))
    name = b"p000"
    word = hmac.digest(key, b"fedpeer audit draw v1" + len(name).to_bytes(2, "big") + name, "sha256")
    half = replace(AUDIT, probability=Fraction(1, 2))
    failed = played(SHAPES["audits that fail"]).log.entries
    of = {entry.id: entry for entry in failed}
    first = next(entry for entry in failed if entry.kind == "audit")
    opening: Any = first.opening
    again = next(e for e in played(SHAPES["measured again"]).log.entries if e.kind == "remeasurement")
    said: Any = again.body["statement"]
    of_named = next(e for e in played(SHAPES["under pseudonyms"]).log.entries if e.kind == "pseudonym")
    three = [bytes([number]) * 32 for number in (1, 2, 3)]
    return {
        "root of three samples": samples_root(three, SALT).hex(),
        "audit of p000 in round 1": word.hex(),
        "p000 is audited at 1/2": "yes" if half.draws(key, "p000") else "no",
        "limit of ten differences at a rate of 1/10": str(conformal_limit(DIFFERENCES, Fraction(1, 10))),
        "statement of an audit": canonical_bytes(opening["statement"]).decode(),
        "an audit": first.data.decode(),
        "end of an audit": of["task/round/1/audit/p000/end"].data.decode(),
        "loss": of["task/held/p000/loss"].data.decode(),
        "a pseudonym": of_named.data.decode(),
        "whose it is": canonical_bytes(dict(of_named.opening or {})).decode(),
        "digest of what was measured": str(said["measured"]),
        "what measuring again has found": again.data.decode(),
    }


def _accounts(made: Example) -> dict[str, str]:
    book = made.task.log.book
    return {f"account {name}": str(book.holds(name)) for name in book.accounts()}


BLOCK = re.compile(r"(?ms)^```worked\n(.*?)^```$")


def filled(page: str) -> str:
    """The page with every worked value as our code computes it; a name that it does not know stays as it is."""
    values = worked()

    def block(found: re.Match[str]) -> str:
        names = [line.partition(" = ")[0] for line in found[1].splitlines()]
        return (
            "```worked\n" + "".join(f"{name} = {values.get(name, '(unknown)')}\n" for name in names) + "```"
        )

    return BLOCK.sub(block, page)


def names_on(page: str) -> list[str]:
    """The names of all worked values, in order."""
    return [line.partition(" = ")[0] for found in BLOCK.finditer(page) for line in found[1].splitlines()]


if __name__ == "__main__":
    LEDGER.write_bytes(example().lines())
    OPENINGS.write_bytes(example().opened())
    PAGE.write_text(filled(PAGE.read_text()))
