"""Searches of families of attacks."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.arena import ArenaDataset, arena
from fedpeer.cli.errors import CommandError
from fedpeer.experiments.arena import searching
from fedpeer.experiments.arena.families import FAMILIES, Family
from fedpeer.experiments.arena.searching import SearchSetting, Unit, run_searches, search_cells
from fedpeer.experiments.arena.stage import stages
from fedpeer.experiments.cells import CellStore, Took, local_executor

SETTING = SearchSetting(
    dataset="digits",
    rules=("verified", "paper"),
    participants=6,
    attackers=2,
    rounds=2,
    shadows=16,
    budget=8,
    seeds=(3,),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture(scope="module")
def found(folder: Path) -> Callable[[str], dict[str, Any]]:
    """What the search of a family finds; each is searched once."""

    @cache
    def search(family: str) -> dict[str, Any]:
        with local_executor(1) as executor:
            return run_searches(SETTING, (family,), CellStore(folder), executor)

    return search


@pytest.mark.arithmetic
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=pytest.mark.extended if family == "length" else pytest.mark.slow)
        for family in FAMILIES
    ],
)
def test_every_family_is_searched_and_reported_on_fresh_starts(
    found: Callable[[str], dict[str, Any]], folder: Path, family: str
) -> None:
    of = found(family)["families"][family]
    assert of["evaluations"] == 8
    (cell,) = search_cells(SETTING, [family])
    record = CellStore(folder).get(cell)
    assert record is not None
    # The search begins at the usual point.
    assert record["points"][0]["values"] == pytest.approx(FAMILIES[family].usual())
    few = [point for point in record["points"] if "searched" in point]
    assert len(few) == 5
    assert min(point["advantage"] for point in few) >= max(
        (point["advantage"] for point in record["points"] if "searched" not in point), default=-9
    )
    best = max(few, key=lambda point: point["searched"])
    assert record["values"] == best["values"]
    assert of["searched"] == round(best["searched"], 3)
    assert {(unit["seed"], unit["round"]) for unit in record["units"]} == {(3, 1), (3, 2)}
    for rule in SETTING.rules:
        figures = of["rules"][rule]
        assert figures["units"] == 2
        low, high = figures["ci"]
        assert low <= figures["advantage"] <= high


@pytest.mark.arithmetic
@pytest.mark.extended
def test_a_lie_pays_more_than_honesty_on_the_same_data_where_claims_are_believed(
    found: Callable[[str], dict[str, Any]],
) -> None:
    assert found("length")["families"]["length"]["rules"]["paper"]["same_advantage"] > 0


def test_the_best_of_a_known_surface_is_found_within_the_budget() -> None:
    family = FAMILIES["length"]
    points = searching.search_points(
        family, 40, lambda values: -((values["effort"] - 0.3) ** 2) - (values["claim"] - 0.9) ** 2
    )
    assert len(points) == 40
    best = max(points, key=lambda point: point["advantage"])
    assert best["advantage"] > -0.05 > points[0]["advantage"]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_usual_points_lie_within_their_ranges(family: Family) -> None:
    assert {"effort", "claim"} <= family.usual().keys()
    for parameter in family.parameters:
        assert parameter.low <= parameter.usual <= parameter.high


def test_whole_parameters_are_whole_at_every_point() -> None:
    points = searching.search_points(FAMILIES["identities"], 16, lambda values: values["identities"])
    assert all(point["values"]["identities"] in range(2, 9) for point in points)


@pytest.mark.extended
def test_the_harm_of_others_is_no_part_of_what_entries_earn() -> None:
    ground = replace(SETTING, rules=("verified", "leave_one_out"), rounds=1).arena(search=False)
    [stage] = stages(ground, 3)
    attacker = stage.attackers[0]
    play = FAMILIES["length"].play(stage.position(attacker, "length"), FAMILIES["length"].usual())
    whole, alone = (stage.play(play.entries, earned_alone=alone) for alone in (False, True))
    assert whole["verified"].earned > 0
    for rule in ground.rules:
        assert (alone[rule].earned, alone[rule].failed) == (whole[rule].earned, whole[rule].failed)


UNIT = Unit("verified", 0, 1, "a", utility=1.0, honest=0.0, same=2.0, failed=())


def test_figures_take_rounds_of_one_attacker_together() -> None:
    later = replace(UNIT, round=2, utility=3.0, failed=("claim",))
    figures = searching._figures([UNIT, later, replace(UNIT, attacker="b")])
    assert figures["units"] == 2
    assert figures["advantage"] == 1.5, "of means 2 and 1"
    assert figures["same_advantage"] == -0.5
    assert np.isclose(figures["caught"], 1 / 3, atol=1e-3)
    assert figures["failed"] == {"claim": 1}


def test_an_unknown_family_and_a_budget_below_a_generation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--search fly: no such family; expected one of all, identities"):
        arena(search=["fly"], out=tmp_path)
    with pytest.raises(CommandError, match="--budget 3: expected at least 8"):
        arena(search=["length"], budget=3, out=tmp_path)


@pytest.mark.arithmetic
@pytest.mark.extended
def test_without_a_budget_the_usual_point_is_played_and_what_is_finished_is_read(tmp_path: Path) -> None:
    setting = replace(SETTING, budget=0, rounds=1)
    with local_executor(1) as executor:
        found = run_searches(setting, ("length",), CellStore(tmp_path), executor)
    of = found["families"]["length"]
    assert of["values"] == FAMILIES["length"].usual()
    assert of["evaluations"] == 0
    assert of["searched"] is None
    assert of["rules"]["verified"]["units"] == 2
    with ThreadPoolExecutor(1) as idle:
        assert run_searches(setting, ("length",), CellStore(tmp_path), idle)["families"]["length"] == of


@pytest.mark.arithmetic
@pytest.mark.extended
def test_finished_searches_are_read(folder: Path, found: Callable[[str], dict[str, Any]]) -> None:
    first = found("length")
    with ThreadPoolExecutor(1) as executor:
        again = run_searches(SETTING, ("length",), CellStore(folder), executor)
    assert again["families"]["length"] == first["families"]["length"]


def test_the_command_prints_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finished cells, so that nothing is trained."""
    setting = SearchSetting("digits", ("verified",), attackers=4, seeds=(0,))
    (cell,) = search_cells(setting, ["length"])
    points = [{"values": {"effort": 0.5}, "advantage": 1.0}]
    result = {"points": points, "values": {"effort": 0.5}, "searched": 1.0, "units": [asdict(UNIT)]}
    CellStore(tmp_path / "cells").put(cell, result, Took(1.0, 1.0), "cpu")
    arena(ArenaDataset.DIGITS, search=["length"], rule=["verified"], seeds=1, out=tmp_path)
    printed = capsys.readouterr().out
    assert "length" in printed
    assert "+1.00" in printed
    assert json.loads((tmp_path / "search.json").read_text())["families"]["length"]["evaluations"] == 1
