"""A small arena on digits: no attack pays under `verified`, some do under `paper`."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fedpeer.cli.arena import arena
from fedpeer.cli.errors import CommandError
from fedpeer.experiments.arena import ATTACKS, ArenaResult, ArenaSetting, run_arena
from fedpeer.experiments.arena.compared import COMPARED_RULES
from fedpeer.experiments.arena.results import HonestRound, bootstrap_interval
from fedpeer.experiments.arena.running import arena_cells
from fedpeer.experiments.arena.setting import ArenaPopulation, Trader, make_population
from fedpeer.experiments.cells import Cell, CellStore, local_executor
from fedpeer.experiments.errors import ExperimentError
from fedpeer.learning.partition import LabelMix
from mechanism.settlement import peer_payment

pytestmark = [pytest.mark.arithmetic, pytest.mark.long]

CHOSEN = (
    "no-effort", "no-effort-claims-full", "over-claim", "echo", "echo-noise", "random", "sign-flipped", "copy",
    "sybils", "identities-3", "halves", "thirds", "shuffled-labels", "late", "double", "nan",
)  # fmt: skip


SETTING = ArenaSetting(
    dataset="digits",
    rules=("verified", "paper", "leave_one_out", *COMPARED_RULES),
    attacks=CHOSEN,
    participants=6,
    attackers=2,
    rounds=1,
    seeds=(3,),
    shadows=48,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arena")


@pytest.fixture(scope="module")
def result(folder: Path) -> ArenaResult:
    with local_executor(1) as executor:
        return run_arena(SETTING, CellStore(folder), executor)


def test_a_finished_seed_is_read_and_gives_the_same_summary(result: ArenaResult, folder: Path) -> None:
    done: list[Cell] = []
    with ThreadPoolExecutor(1) as executor:
        again = run_arena(SETTING, CellStore(folder), executor, lambda cell, seconds: done.append(cell))
    assert not done
    assert again.summary() == result.summary()


@pytest.mark.usefixtures("result")
def test_seeds_of_other_settings_are_refused(folder: Path) -> None:
    other = replace(SETTING, seeds=(4,), shadows=60)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ExperimentError, match="computed with shadows 48 in place of 60; name another folder"),
    ):
        run_arena(other, CellStore(folder), executor)


def test_seeds_of_another_version_are_refused(tmp_path: Path) -> None:
    (cell,) = arena_cells(SETTING)
    record = {"parameters": json.loads(json.dumps(cell.parameters)), "result": {}}
    (tmp_path / "arena-0.json").write_text(json.dumps(record))
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(ExperimentError, match="another version of the arena"),
    ):
        run_arena(SETTING, CellStore(tmp_path), executor)


@pytest.mark.parametrize("attack", CHOSEN)
def test_no_attack_pays_under_the_verified_rule(result: ArenaResult, attack: str) -> None:
    found = result.attack("verified", attack)
    assert found is not None
    assert found["ci"][1] <= 0


def test_effort_pays_each_participant_on_measured_degrees_where_the_equilibrium_says_so(
    result: ArenaResult,
) -> None:
    population = make_population(result.setting, result.setting.seeds[0])
    fights = [f for f in result.fights if (f.rule, f.attack) == ("verified", "no-effort")]
    assert len(fights) == 2
    for fight in fights:
        trader = next(t for t in population.traders if t.name == fight.attacker)
        peers = [t.optimal.degree for t in population.traders if t is not trader]
        foreseen = _net(population, trader, trader.optimal, peers) - _net(
            population, trader, trader.start, peers
        )
        assert trader.optimal.degree < trader.start.degree, "the equilibrium wants an effort of it"
        assert foreseen > 0.1, "and says that it pays"
        assert fight.honest - fight.utility > 0.3 * foreseen, fight.attacker


def _net(population: ArenaPopulation, trader: Trader, mix: LabelMix, peers: list[Fraction]) -> float:
    """What the paper's formula leaves the trader at `mix`, true degrees and its cost."""
    paid = [float(peer_payment(population.terms, mix.degree, peer)) for peer in peers]
    return float(np.mean(paid)) - trader.spent(mix)


def test_lies_pay_under_the_papers_rule(result: ArenaResult) -> None:
    for attack in ("no-effort-claims-full", "echo", "random", "copy"):
        found = result.attack("paper", attack)
        assert found is not None
        assert found["advantage"] > 0, attack
    broken = result.attack("paper", "nan")
    assert broken is not None
    assert broken["advantage"] < 0


#: A copy under `gauntlet` shares in what its original takes off the loss, and is paid less than it.
@pytest.mark.parametrize("rule", [rule for rule in COMPARED_RULES if rule != "gauntlet"])
def test_rules_on_what_models_say_pay_a_copy_as_its_original(result: ArenaResult, rule: str) -> None:
    copied, broken = result.attack(rule, "copy"), result.attack(rule, "nan")
    assert copied is not None
    assert broken is not None
    assert copied["attacker"] > copied["honest"]
    assert broken["attacker"] == 0


def test_attacks_that_train_nothing_are_caught_and_cost_the_global_model_nothing(result: ArenaResult) -> None:
    for attack in ("echo", "echo-noise", "random", "sign-flipped", "copy", "nan", "late"):
        found = result.attack("verified", attack)
        assert found is not None
        assert found["caught"] == 1, attack
        assert abs(found["accuracy_lost"]) < 0.1, attack


def test_the_second_submission_of_one_participant_changes_nothing(result: ArenaResult) -> None:
    found = result.attack("verified", "double")
    assert found is not None
    assert found["advantage"] == 0


def test_the_summary_has_the_promised_form(result: ArenaResult, tmp_path: Path) -> None:
    summary = json.loads(json.dumps(result.summary()))
    assert set(summary["rules"]) == set(SETTING.rules)
    verified = summary["rules"]["verified"]
    assert {"attacker", "honest", "advantage", "ci", "caught"} <= set(verified["attacks"]["echo"])
    assert set(verified["degree"]) >= {"mae", "rank", "coverage"}
    assert 0 <= verified["honest_refused"] <= 1
    assert verified["honest"] == 12, "six at their optimum, six without effort"
    result.heat_map(tmp_path / "arena.png")
    assert (tmp_path / "arena.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("had", "hurt"), [(1.0, ("overlap", "claim")), (1.3, ("claim",))])
def test_a_link_hurts_who_has_no_samples_in_common(had: float, hurt: tuple[str, ...]) -> None:
    honest = HonestRound("verified", 0, 1, 0.2, 0.2, 0.1, 0.3, ("overlap", "claim"), 1.4, had)
    assert honest.hurt == hurt
    found = ArenaResult(replace(SETTING, rules=("verified",)), honest=[honest]).summary()["rules"]["verified"]
    assert found["honest_failed"] == dict.fromkeys(sorted(hurt), 1)
    assert found["honest_linked"]["n"] == (had > 1)


def test_every_strategy_of_the_market_is_there() -> None:
    assert len(ATTACKS) == 33
    assert {"old-model", "last-step", "handful", "colluders-2", "colluders-4", "drop-out"} <= set(ATTACKS)


def test_the_interval_of_equal_values_is_the_value_and_else_covers_the_mean() -> None:
    assert bootstrap_interval(np.zeros(5)) == (0, 0)
    values = np.random.default_rng(0).normal(1, 1, 40)
    low, high = bootstrap_interval(values)
    assert low < values.mean() < high
    assert math.isclose(high - low, 4 * values.std() / math.sqrt(40), rel_tol=0.2)


def test_an_unknown_rule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CommandError, match="--rule free: no such thing; expected one of verified, paper"):
        arena(rule=["free"])


@pytest.mark.parametrize("out", ["file", "file/sub", "spoilt"])
def test_a_folder_that_cannot_be_written_is_said_before_the_work(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "spoilt" / "arena.json").mkdir(parents=True)
    with pytest.raises(CommandError, match="name another"):
        arena(out=tmp_path / out)


def test_attacks_that_need_a_round_before_theirs_are_not_left_out_in_silence() -> None:
    with pytest.raises(CommandError, match="old-model, last-step need a round before"):
        arena(rounds=1, attack=["old-model", "last-step"])


@pytest.mark.usefixtures("result")
def test_a_seed_whose_content_is_another_is_refused(folder: Path, tmp_path: Path) -> None:
    for path in (folder).glob("*.json"):
        (tmp_path / path.name).write_text(json.dumps({**json.loads(path.read_text()), "result": {}}))
    with ThreadPoolExecutor(1) as executor, pytest.raises(ExperimentError, match="not what an arena writes"):
        run_arena(SETTING, CellStore(tmp_path), executor)
