"""Audits by re-training in the arena."""

import json
from copy import deepcopy
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedpeer.cli.arena import arena
from fedpeer.cli.errors import CommandError
from fedpeer.experiments.arena.audited import (
    TRICKS,
    AuditedSetting,
    AuditTerms,
    audited_cell,
    audited_cells,
    summary,
)
from fedpeer.experiments.arena.families import FAMILIES
from fedpeer.experiments.cells import CellStore, Took

TERMS = AuditTerms(rate=Fraction(1, 10))


def test_tricks_are_points_of_families() -> None:
    for family, values in TRICKS.values():
        ranges = {p.name: p for p in FAMILIES[family].parameters}
        for name, value in values.items():
            assert ranges[name].low <= value <= ranges[name].high


def audited(*pairs: tuple[int, int], **more: Any) -> dict[str, Any]:
    """Submitted and re-trained degrees, thousandths."""
    return {
        "submitted": [1000 * first for first, _ in pairs],
        "retrained": [1000 * second for _, second in pairs],
        "farthest": [False] * len(pairs),
        "unlike": [False] * len(pairs),
        "distinct": [1.0] * len(pairs),
        "near": [0.0] * len(pairs),
        **more,
    }


def unit(attacker: str, utility: float, *pairs: tuple[int, int], **more: Any) -> dict[str, Any]:
    own = audited(*pairs, earned=utility + 1, utility=utility, failed=[], **more)
    return {"attacker": attacker, "honest": 3.0, "same": 2.5, "own": own}


def start(found: bool, farthest: bool = False, unlike: bool = False) -> dict[str, Any]:
    """Of nineteen shadows, whose limit at 1/10 is their second greatest difference, 0.018."""
    shown = (100, 119) if found else (100, 118)
    tricks = {
        name: [
            unit("a", 3.5, shown, farthest=[farthest], unlike=[unlike]),
            unit("b", 3.3, (100, 100)),
        ]
        for name in TRICKS
    }
    return {
        "differences": [1000 * n for n in range(1, 20)],
        "honest": audited((0, 18), (0, 19), (50, 20), (0, 0)),
        "tricks": tricks,
    }


def test_what_is_beyond_the_limit_of_its_own_start_is_found() -> None:
    other = start(True)
    other["differences"] = [30_000] * 19
    found = summary([(0, start(True)), (1, other)], TERMS)
    of = found["honest"]["degree"]
    assert (of["failed"], of["of"]) == (1, 8)
    low, high = of["ci"]
    assert low < 1 / 8 < high
    for name in TRICKS:
        figures = found["tricks"][name]["own"]
        assert (figures["degree"]["failed"], figures["degree"]["of"], figures["units"]) == (1, 4, 4)
        assert figures["gain"] == pytest.approx(0.4)
        assert figures["same"] == pytest.approx(0.9)


def test_any_finding_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpeer.experiments.arena.audited._RESAMPLES", 10)  # nothing here is of intervals
    for findings in product((False, True), repeat=3):
        of = summary([(0, start(*findings))], TERMS)["tricks"]["repeat"]["own"]
        assert tuple(bool(of[name]["failed"]) for name in ("degree", "training", "origin")) == findings
        assert of["any"]["failed"] == any(findings)


def test_audits_take_from_what_they_find_and_leave_what_they_do_not() -> None:
    """One that is never found is accused as honesty is, and loses what honesty loses."""
    seen, unseen = (summary([(0, start(found))], TERMS) for found in (True, False))
    drawn = seen["audits"]["probability"]
    assert drawn == unseen["audits"]["probability"]
    assert 0 < drawn["single"] == drawn["groups"]
    of, other = (each["tricks"]["repeat"]["own"] for each in (seen, unseen))
    assert of["gain"] == other["gain"]
    assert of["audited_single"] < of["gain"] == other["audited_single"]
    low, high = of["audited_single_ci"]
    assert low <= of["audited_single"] <= high


def test_a_group_loses_for_each_of_its_identities() -> None:
    one, two = start(True), start(True)
    for each, utility, pairs in ((one, 3.4, [(100, 119)]), (two, 7.0, [(100, 119), (100, 119)])):
        each["tricks"]["halves"] = [unit("a", utility, *pairs)]
    single, double = (summary([(0, each)], TERMS)["tricks"]["halves"]["own"] for each in (one, two))
    assert double["degree"]["of"] == 2
    assert single["audited_groups"] == single["audited_single"]
    assert double["audited_groups"] < double["audited_single"], (
        "drawn more often, for a group that gains more"
    )
    lost, of_two = (each["gain"] - each["audited_single"] for each in (single, double))
    assert of_two == pytest.approx(2 * lost, abs=2e-3)


def test_too_few_shadows_accuse_nobody() -> None:
    few = start(True)
    few["differences"] = few["differences"][:8]
    found = summary([(0, few)], TERMS)
    for of in (found["honest"], found["tricks"]["repeat"]["own"]):
        assert of["degree"]["failed"] == of["any"]["failed"] == 0


def test_the_command_prints_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished cells, so that nothing is trained."""
    store = CellStore(tmp_path / "cells")
    first = start(True)
    first["tricks"]["repeat"][0]["made"] = deepcopy(first["tricks"]["repeat"][0]["own"])
    first["tricks"]["repeat"] = first["tricks"]["repeat"][:1]
    cells = audited_cells(AuditedSetting("digits"), (0,))
    assert [cell.parameters["rounds"] for cell in cells] == [1, 2], "one cell a start"
    for cell in cells:
        store.put(cell, first, Took(1.0, 1.0), "cpu")
    arena(audits=True, task=["digits"], seeds=1, out=tmp_path)
    printed = capsys.readouterr().out
    assert "repeat" in printed
    assert "made" in printed
    found = json.loads((tmp_path / "audits.json").read_text())["digits"]
    assert found["starts"] == [[0, 1], [0, 2]]
    assert found["honest"]["degree"]["of"] == 8


def test_an_unknown_task_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--task fly: no such task of --audits; expected one of digits"):
        arena(audits=True, task=["fly"], out=tmp_path)


@pytest.mark.arithmetic
@pytest.mark.slow
def test_a_start_is_measured() -> None:
    setting = {
        "dataset": "digits",
        "participants": 5,
        "attackers": 1,
        "honest": 3,
        "rounds": 1,
        "shadows": 16,
    }
    found = audited_cell({**setting, "seed": 0}, "cpu")
    assert len(found["differences"]) == 16
    assert len(found["honest"]["submitted"]) == len(found["honest"]["retrained"]) == 3
    assert found["honest"]["distinct"] == [1.0] * 3
    assert found["tricks"].keys() == TRICKS.keys()
    for name, (of,) in found["tricks"].items():
        identities = 2 if name.startswith("halves") else 1
        assert len(of["own"]["submitted"]) == identities
        assert ("made" in of) == (TRICKS[name][0] != "copy")
    # What a half repeats is counted, and whoever opens all of the data hides it.
    (halves,) = found["tricks"]["halves-mean"]
    assert halves["made"]["distinct"] == [0.5, 0.5]
    assert halves["own"]["distinct"] == [1.0, 1.0]
    # But losses tell what it was trained on.
    assert halves["own"]["farthest"] == [True, True]
    assert sum(found["honest"]["farthest"]) <= 1
    # And what was made up is no sample of D_c's kind.
    assert sum(found["honest"]["unlike"]) <= 1
    assert halves["made"]["unlike"] == [True, True]
    assert found["tricks"]["synthesise"][0]["made"]["unlike"] == [True]
