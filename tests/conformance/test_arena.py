"""Rounds of the arena, as ledgers, by both verifiers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedpeer.experiments.arena.setting import ArenaSetting
from tests.conformance.arena import Played, faults, played

#: The default suite has both verifiers of every market that its tests play (`integration.market.verified`).
pytestmark = pytest.mark.extended

ATTACKS = ("identities-3", "halves-repeated", "no-effort-claims-full", "copy", "late", "nan")


@pytest.fixture(scope="module")
def rounds() -> list[Played]:
    setting = ArenaSetting("digits", ("verified",), ATTACKS, 5, 1, rounds=1, shadows=50)
    return list(played(setting, 0))


def test_both_verifiers_pay_what_the_arena_pays(rounds: list[Played], tmp_path: Path) -> None:
    assert [each.attack for each in rounds] == ["", *ATTACKS]
    for each in rounds:
        assert faults(each, tmp_path / "ledger.jsonl") == [], each.attack
    found = [a for each in rounds for a in each.evidence.assessments]
    record: Any = rounds[0].evidence.record
    assert record["model"]["distinct"], "lines to distinct samples are drawn"
    assert any(a.holders_micro > 1_200_000 for a in found), "some are read to have samples in common"
    assert any(not a.scored for a in found)


def test_a_payment_that_is_another_is_seen(rounds: list[Played], tmp_path: Path) -> None:
    first, *others = rounds[0].settlement.payments
    more = replace(first, paid_micro=first.paid_micro + 1)
    lie = replace(rounds[0], settlement=replace(rounds[0].settlement, payments=(more, *others)))
    (fault,) = faults(lie, tmp_path / "ledger.jsonl")
    assert fault.startswith("the ledger pays")
