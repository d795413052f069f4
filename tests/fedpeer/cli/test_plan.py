"""`fedpeer plan` from a file to its JSON."""

import json
import math
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedpeer.__main__ import main

pytestmark = pytest.mark.arithmetic

DOCUMENT = {
    "payment": "log",
    "Q": 2000.0,
    "phi": 300,
    "upsilon": 200,
    "participants": [{"delta0": 1.0, "rate": 1.0, "cost": 0.8} for _ in range(6)],
    "learner": {"omega": 1, "gamma": 5, "reward": 100, "rounds": 2},
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def call(document, *options, name="plan.json"):
        file = tmp_path / name
        file.write_text(document if isinstance(document, str) else json.dumps(document))
        monkeypatch.setattr(sys, "argv", ["fedpeer", "plan", str(file), *options])
        try:
            code = main()
        except SystemExit as left:
            code = left.code or 0
        shown = capsys.readouterr()
        return code or 0, shown.out, shown.err

    return call


def test_json_has_the_promised_shape_and_the_known_answer(run):
    code, out, _ = run(DOCUMENT, "--json")
    result = json.loads(out)
    assert code == 0
    for end in ("least", "greatest"):
        assert {"delta", "effort", "max_regret", "certified", "iterations"} <= result[end].keys()
        assert result[end]["certified"] is True
        assert 0 <= result[end]["max_regret"] < 1e-9
    assert result["least"]["delta"] == pytest.approx([0.3856432230609] * 6, abs=1e-9)
    assert result["greatest"]["delta"] == [1.0] * 6
    assert result["unique"] is False
    assert result["Q"] == 2000
    for key in ("payments", "costs", "utilities", "slack"):
        assert len(result[key]) == 6
    paid = math.log(2000 / (600 * result["least"]["delta"][0] ** 2 + 200))
    assert result["payments"][0] == pytest.approx(paid, abs=1e-9)
    bound = 1 + 5 * result["least"]["delta"][0] ** 2
    assert result["payoff"] == pytest.approx(100 / bound - 2 * 6 * paid, abs=1e-8)


def test_a_coefficient_that_is_left_open_is_chosen(run):
    document = {**DOCUMENT, "Q": None, "participants": [{"cost": 0.5, "count": 40}]}
    document["learner"] = {"omega": 1, "gamma": 5, "reward": 20_000}
    result = json.loads(run(document, "--json")[1])
    low = math.exp(-1)
    assert result["Q"] == pytest.approx(300 * math.exp(0.5 * (1 - low)) * (2 * low**2 + 2 / 3), rel=1e-9)
    assert min(result["slack"]) == pytest.approx(0, abs=1e-9)
    # Against the greatest equilibrium: making no effort must not pay, where nobody else makes any.
    alone = 2 - math.sqrt(4 - 5 / 3)
    robust = (500 + 300 * alone**2) * math.exp(0.5 * (1 - alone))
    assert result["robust"]["Q"] == pytest.approx(robust, rel=1e-9)
    checked = json.loads(run({**document, "Q": result["robust"]["Q"]}, "--json")[1])
    assert checked["greatest"]["payoff"] == result["robust"]["payoff"]


def test_the_safe_answer_comes_first_and_a_cliff_is_named(run):
    document = {**DOCUMENT, "Q": None, "participants": [{"cost": 0.5, "count": 40}]}
    document["learner"] = {"omega": 1, "gamma": 5, "reward": 20_000}
    code, out, _ = run(document)
    said = " ".join(out.split())
    assert code == 0
    assert said.startswith("safe: offer Q = ")
    assert "stands on a cliff" in said
    result = json.loads(run(document, "--json")[1])
    safe = result["safe"]
    assert (
        safe["Q"] > result["robust"]["Q"]
    )  # which is the least at which all make an effort whatever the others do
    for share in (1.0, 0.995):
        near = json.loads(run({**document, "Q": safe["Q"] * share}, "--json")[1])
        assert near["greatest"]["payoff"] == pytest.approx(safe["payoff"], rel=0.05)
        assert not [note for note in near["notes"] if "cliff" in note]
    over = json.loads(run({**document, "Q": result["robust"]["Q"] * 0.995}, "--json")[1])
    assert over["greatest"]["payoff"] < 0.5 * safe["payoff"]


def test_a_toml_file_with_a_random_population_is_repeatable(run):
    text = """
    Q = 1500.0
    phi = 300
    upsilon = 200
    [participants]
    count = 300
    seed = 7
    delta0 = {uniform = [0.3, 1.0]}
    cost = {lognormal = [-0.7, 0.3]}
    rate = {choice = [0.5, 1.0, 2.0]}
    """
    one, other = (run(text, "--json", name="plan.toml")[1] for _ in range(2))
    assert one == other
    result = json.loads(one)
    assert len(result["payments"]) == 300
    assert result["payoff"] is None
    starts = np.random.default_rng([7, 0]).uniform(0.3, 1.0, 300)
    assert (np.array(result["greatest"]["delta"]) <= starts + 1e-12).all()


def test_selection_budget_and_plots(run, tmp_path):
    document = {**DOCUMENT, "participants": [*DOCUMENT["participants"], {"cost": 4.0}, {"cost": 5.0}]}
    code, out, _ = run(document, "--json", "--budget", "--select", "--plot", str(tmp_path / "plots"))
    result = json.loads(out)
    assert code == 0
    assert float(result["budget"]["bound"]) == pytest.approx(16 * math.log(10), abs=16e-6)
    assert float(result["budget"]["bound"]) >= 16 * math.log(10)
    chosen = result["selection"]
    assert len(chosen["payments"]) == len(chosen["selected"])
    assert max(chosen["required"][k] for k in chosen["selected"]) == pytest.approx(chosen["threshold"])
    for path in result["plots"]:
        with open(path, "rb") as drawn:  # noqa: PTH123
            assert drawn.read(8) == b"\x89PNG\r\n\x1a\n"
    assert [p.rsplit("/", 1)[1] for p in result["plots"]] == ["utility.png", "payoff.png"]


def test_what_risk_does_to_equilibria_by_the_number_of_peers(run):
    """As docs/mechanism.md tells it."""
    document = {
        "Q": 600.0, "phi": 300, "upsilon": 200, "risk": {"cara": 1.0},
        "participants": [
            {"count": 8, "seed": 7, "delta0": {"uniform": [0.3, 1.0]}, "cost": {"lognormal": [-0.4, 0.3]}},
            {"count": 4, "cost": 5.0},
        ],
    }  # fmt: skip
    code, out, _ = run(document, "--json")
    assert code == 0
    result = json.loads(out)
    rows = {(row["peers"], row["side"]): row for row in result["risk"]["equilibria"]}
    assert [rows[peers, "least"]["working"] for peers in (1, 3, "all")] == [1, 4, 5]
    assert all(row["extremal"] and row["converged"] and row["max_regret"] < 1e-8 for row in rows.values())
    for side in ("least", "greatest"):
        assert rows["all", side]["delta"] == pytest.approx(result[side]["delta"], abs=1e-9)
        assert rows["all", side]["equivalents"] == pytest.approx(result[side]["utilities"], abs=1e-9)
        for peers in (1, 3):
            assert all(np.array(rows[peers, side]["delta"]) >= np.array(result[side]["delta"]) - 1e-6)
    code, out, _ = run({**document, "risk": {"crra": 2, "wealth": 8, "peers": [1]}})
    assert code == 0
    assert "CRRA 2 at a wealth of 8" in out
    assert "not proved" in re.sub(r"\s+", " ", out)


def test_people_get_a_table_and_the_certificate(run):
    code, out, _ = run(DOCUMENT)
    assert code == 0
    assert "effort" in out
    assert "0.385643" in out
    assert "no one gains more than" in out
    assert "not unique" in out


def test_a_coefficient_that_pays_nobody_is_pointed_out(run):
    result = json.loads(run({**DOCUMENT, "Q": 2.0}, "--json")[1])
    assert result["payments"] == [0.0] * 6
    assert "pays nobody" in result["notes"][0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"Q": 0}, "Q is 0"),
        ({"Q": float("nan")}, "Q is nan"),
        ({"phi": -1}, "phi is -1"),
        ({"upsilon": 0}, "upsilon is 0"),
        ({"participants": []}, "participants is 0; expected at least 2"),
        ({"participants": [{"cost": 1}]}, "participants is 1; expected at least 2"),
        ({"participants": [{"cost": 1}, {"cost": -2}]}, "participants[1].cost is -2"),
        ({"participants": [{"cost": 1}, {"cost": 1, "rate": 0}]}, "participants[1].rate is 0"),
        ({"participants": [{"cost": 1}, {"delta0": 1}]}, "participants[1].cost"),
        (
            {"participants": [{"cost": 1}, {"cost": 1, "delta0": float("nan")}]},
            "participants[1].delta0 is nan",
        ),
        ({"participants": [{"cost": 1}, {"cost": 1, "delta": 1}]}, "participants[1].delta"),
        ({"participants": {"count": 5, "cost": {"uniform": [2, 1]}}}, "participants[0].cost.uniform"),
        ({"participants": {"count": 5, "cost": {"normal": [0, 1]}}}, "participants[0].cost"),
        ({"payment": "square"}, "payment.name is 'square'"),
        ({"payment": {"name": "power", "exponent": 2}}, "payment.exponent"),
        ({"peer_rule": "best"}, "peer_rule"),
        ({"learner": {"omega": 0, "gamma": 1, "reward": 1}}, "learner.omega is 0"),
        ({"Q": None, "learner": None}, "learner"),
        ({"colour": 1}, "colour is 1; expected no such key"),
        ({"rule": "mean"}, "did you mean peer_rule?"),
        ({"Q": -2.5}, "Q is -2.5; expected a number in [1e-12, 1e+12]"),
        ({"Q": float("inf")}, "Q is inf; expected a number in [1e-12, 1e+12]"),
        ({"Q": 10**400}, "expected a number in [1e-12, 1e+12]"),
        ({"Q": "2"}, "Q is '2'; expected a number in [1e-12, 1e+12]"),
        ({"Q": True}, "Q is True; expected"),
        ({"phi": float("nan")}, "phi is nan; expected a number in [1e-12, 1e+12]"),
        ({"upsilon": -200}, "upsilon is -200; expected a number in [1e-12, 1e+12]"),
        ({"participants": None}, "participants is None; expected a list"),
        ({"participants": "many"}, "participants is 'many'; expected a list"),
        ({"participants": [1, 2]}, "participants[0] is 1; expected a table"),
        ({"participants": {"count": 0, "cost": 1}}, "participants[0].count is 0"),
        ({"participants": {"count": 2.5, "cost": 1}}, "participants[0].count is 2.5"),
        (
            {"participants": [{"cost": 0}, {"cost": 1}]},
            "participants[0].cost is 0; expected a number in [1e-12, 1e+12]",
        ),
        ({"participants": [{"cost": 1, "rate": -1}, {"cost": 1}]}, "participants[0].rate is -1"),
        ({"participants": [{"cost": 1, "delta0": 1.5}, {"cost": 1}]}, "expected a number in [0, 1]"),
        (
            {"participants": [{"cost": 1, "efforts": [0, 1], "degrees": [0.4, 0.5]}, {"cost": 1}]},
            "non-increasing",
        ),
        ({"payment": {"name": "linear", "scale": -1}}, "payment.scale"),
        ({"payment": 3}, "payment is 3"),
        (
            {"learner": {"gamma": 1, "reward": 1}},
            "learner.omega is missing; expected a number in [1e-12, 1e+12]",
        ),
        ({"learner": {"omega": 1, "gamma": 1, "reward": -1}}, "learner.reward is -1"),
        ({"learner": {"omega": 1, "gamma": 1, "reward": 1, "rounds": 0}}, "learner.rounds is 0"),
        ({"Q": 1e308}, "Q is 1e+308; expected a number in [1e-12, 1e+12]"),
        ({"Q": 1e-320}, "Q is 1e-320; expected a number in [1e-12, 1e+12]"),
        ({"phi": 1e308}, "phi is 1e+308; expected a number in [1e-12, 1e+12]"),
        ({"phi": 1e-308}, "phi is 1e-308; expected"),
        ({"upsilon": 1e308}, "upsilon is 1e+308; expected"),
        ({"participants": {"count": 2, "cost": 1e308}}, "participants[0].cost is 1e+308; expected"),
        (
            {"participants": {"count": 2, "cost": {"lognormal": [1e308, 1e308]}}},
            "participants[0].cost is inf",
        ),
        (
            {"participants": {"count": 2, "cost": 1, "cost_exponent": 1e308}},
            "participants[0].cost_exponent is 1e+308; expected a number in [0.125, 64]",
        ),
        ({"participants": {"count": 2, "cost": 1, "seed": 10**4000}}, "participants[0].seed is 1000"),
        (
            {"learner": {"omega": 1, "gamma": 1, "reward": 1, "rounds": 10**400}},
            "expected a whole number from 1 to 1000000000",
        ),
        ({"learner": {"omega": 1e-3, "gamma": 1, "reward": 1e308}}, "learner.reward is 1e+308; expected"),
        ({"learner": {"omega": True, "gamma": 1, "reward": 1}}, "learner.omega is True; expected"),
        ({"learner": {"omega": 1, "gamma": True, "reward": 1}}, "learner.gamma is True; expected"),
        (
            {"learner": {"omega": 1, "gamma": 1, "reward": {"power": [1, 99]}}},
            "learner.reward.power[1] is 99",
        ),
        ({"payment": {"name": "power", "scale": 1e300}}, "payment.scale is 1e+300; expected"),
        ({"payment": {}}, "payment is {}; expected"),
        ({"risk": 1.0}, "risk is 1.0; expected a table with cara, or with crra and wealth"),
        ({"risk": {}}, "risk.cara is missing; expected cara, or crra and wealth"),
        ({"risk": {"cara": 0}}, "risk.cara is 0; expected a finite number above 0"),
        ({"risk": {"crra": 2}}, "risk.crra is 2; expected crra together with wealth"),
        ({"risk": {"cara": 1, "peers": [0]}}, "risk.peers[0] is 0; expected a whole number of at least 1"),
        ({"risk": {"cara": 1, "peers": "all"}}, "risk.peers is 'all'; expected a list"),
        ({"risk": {"cara": 1, "peers": []}}, "risk.peers is []; expected a list of one or more numbers"),
        (
            {"risk": {"cara": 1}, "peer_rule": "mean"},
            "peer_rule is 'mean'; expected random, where risk is weighed",
        ),
        (
            {"risk": {"cara": 1}, "participants": {"count": 41, "cost": 1}},
            "participants is 41; expected at most 40",
        ),
        ({"Q": {}}, "Q is {}; expected"),
        (
            {"participants": [{"cost": 1}, {"cost": 1, "efforts": [0, 1], "degrees": [0.4, 0.5]}]},
            "participants[1].degrees is [0.4, 0.5]; expected a non-increasing curve",
        ),
        (
            {"participants": [{"cost": 1}, {"cost": 1, "efforts": [0.1, 1], "degrees": [0.5, 0.4]}]},
            "participants[1].efforts is [0.1, 1.0]; expected strictly increasing",
        ),
        (
            {"participants": [{"cost": 1}, {"cost": 1, "efforts": [0, 1]}]},
            "participants[1].degrees is missing",
        ),
    ],
)
def test_bad_input_ends_in_one_sentence_that_names_it(run, change, words):
    code, out, err = run({**DOCUMENT, **change}, "--json")
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("phi", "phi is missing; expected a number in [1e-12, 1e+12]"),
        ("upsilon", "upsilon is missing; expected a number in [1e-12, 1e+12]"),
        ("participants", "participants is missing; expected a list of participants"),
    ],
)
def test_what_a_document_lacks_is_named_with_its_range(run, lacking, words):
    code, _, err = run({key: value for key, value in DOCUMENT.items() if key != lacking})
    assert code == 2
    assert words in err
    code, _, err = run({}, "--json")
    assert code == 2
    assert "phi is missing" in err


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("{", "a.json", "not valid JSON"),
        ("= 3", "a.toml", "not valid TOML"),
        ("[1]", "a.json", "expected one object"),
        ('{"phi": 1, "phi": 2}', "a.json", "the key 'phi' is given twice in one object"),
        ('{"learner": {"omega": 1, "omega": 1}}', "a.json", "the key 'omega' is given twice"),
        ("phi = 1\nphi = 2", "a.toml", "not valid TOML"),
        ('{"phi": ' + "1" * 5000 + "}", "a.json", "not valid JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_explained(run, text, name, words):
    code, _, err = run(text, name=name)
    assert code == 2
    assert words in err


def test_a_table_of_efforts_beside_curves_is_solved(run):
    table = {"cost": 0.5, "efforts": [0, 0.5, 1], "degrees": [0.9, 0.5, 0.2]}
    document = {**DOCUMENT, "participants": [{"cost": 0.8}, {"cost": 0.5, "rate": 2.0, "count": 2}, table]}
    code, out, _ = run(document, "--json")
    least = json.loads(out)["least"]
    assert code == 0
    assert least["certified"]
    effort, degree = np.array(least["effort"]), np.array(least["delta"])
    assert degree[:3] == pytest.approx(np.exp(-np.array([1, 2, 2]) * effort[:3]), abs=1e-9)
    assert degree[3] == pytest.approx(np.interp(effort[3], table["efforts"], table["degrees"]), abs=1e-9)
    # The same population as one table each, in another order of kinds.
    turned = json.loads(run({**document, "participants": document["participants"][::-1]}, "--json")[1])
    assert turned["least"]["delta"][::-1] == pytest.approx(least["delta"], abs=1e-9)


@pytest.mark.parametrize("name", ["plan.json", "plan.toml"])
def test_a_byte_order_mark_is_no_part_of_a_document(run, name):
    text = "phi = 300\nupsilon = 200\nQ = 2000\nparticipants = {count = 3, cost = 0.5}"
    document = json.dumps({**DOCUMENT, "participants": {"count": 3, "cost": 0.5}})
    code, out, _ = run("\ufeff" + (text if name == "plan.toml" else document), "--json", name=name)
    assert code == 0
    assert len(json.loads(out)["payments"]) == 3


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("payment", ["log", "linear"])
@pytest.mark.parametrize(
    "ends",
    [
        {"Q": 1e12},
        {"Q": 1e-12},
        {"phi": 1e12},
        {"phi": 1e-12, "upsilon": 1e12},
        {"phi": 1e12, "upsilon": 1e-12},
        {"participants": [{"cost": 1e12}, {"cost": 1e-12}, {"cost": 1}]},
        {"participants": [{"cost": 1, "rate": 1e12}, {"cost": 1, "rate": 1e-12}, {"cost": 1}]},
        {"participants": [{"cost": 1, "cost_exponent": 64}, {"cost": 1, "cost_exponent": 1 / 8}]},
        {"learner": {"omega": 1e-12, "gamma": 1e12, "reward": {"power": [1e12, 16]}, "rounds": 10**9}},
    ],
)
def test_the_ends_of_every_range_are_solved_without_a_warning(run, payment, ends):
    code, out, err = run({**DOCUMENT, "payment": payment, **ends}, "--json", "--budget")
    assert (code, err) == (0, "")
    least = json.loads(out)["least"]
    # Beside a cost of 1e12 no utility is known to a millionth, and costs both convex and concave are bounded
    # loosely; the answer says so.
    costs = [float(one["cost"]) for one in ends.get("participants", [])]
    assert least["converged"] or max(costs) == 1e12
    assert least["max_regret"] <= 1e-5 * max([1.0, *least["payments"], *costs])


def test_the_required_coefficient_is_not_the_offer(run):
    document = {**DOCUMENT, "participants": [*DOCUMENT["participants"], {"cost": 4.0}]}
    out = " ".join(run(document, "--select")[1].split())
    assert "while all take part; in the game among the selected alone, offered Q" in out


DOCS = Path(__file__).parents[3] / "docs" / "plan.md"


def documented(table):
    """The keys of a table of the documentation, by the words of its first row."""
    rows = DOCS.read_text().split(table, 1)[1].split("|---|---|---|---|\n", 1)[1].split("\n\n", 1)[0]
    return [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in rows.splitlines()]


def test_the_documented_example_is_solved_and_every_key_is_documented(run):
    example = re.search(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL).group(1)
    code, out, _ = run(example, "--json", "--budget", name="plan.toml")
    result = json.loads(out)
    assert code == 0
    assert len(result["payments"]) == 14
    assert result["least"]["certified"]
    assert result["greatest"]["certified"]
    top, entry, learner, risk = (
        set.union(*documented(where))
        for where in (
            "before\nanything is computed",
            "An entry of `participants`:",
            "`learner`, needed for",
            "`risk` asks what",
        )
    )
    for keys, path, base in (
        (top, "", {**tomllib.loads(example)}),
        (entry, "participants[0].", {"cost": 1}),
        (learner, "learner.", {"omega": 1, "gamma": 1, "reward": 1}),
        (risk, "risk.", {"cara": 1}),
    ):
        wrong = {**base, "nosuchkey": 1}
        document = wrong if path == "" else {**DOCUMENT, path.split("[")[0].strip("."): wrong}
        known = run(document)[2].split("but one of ")[1].strip().split(", ")
        assert set(known) == keys
