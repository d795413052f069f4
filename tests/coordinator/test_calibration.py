"""A task file's calibration: written beside its comments, refused for another task."""

import errno
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from coordinator.calibration import Kept, basis, check_calibration, replace_file, with_placeholders, written
from coordinator.cli import app
from coordinator.config import CalibrationSection, TaskConfig, parse_config
from coordinator.errors import CoordinatorError, FolderError, MarketTaskError
from coordinator.opening import prepare_task, repriced
from coordinator.staging import staged
from fedpeer.cli.calibrate import AUDIT_GAIN, calibrate
from fedpeer.cli.errors import CommandError
from fedpeer.evidence.gaps import MeasuredGaps
from fedpeer.learning.models import initial_weights
from fedpeer.protocol.model_file import encode_model
from fedpeer.text_files import read_text
from mechanism.audit import deterrence
from mechanism.errors import FieldError, MechanismError
from tests.commands import fedpeer
from tests.coordinator.test_dry_round import task
from tests.integration.market import make_folder

FILE = """\
# Digits, for the spring.
id = "digits-1"   # once
Q = 1000          # the paper's
phi = 300
upsilon = 200

# How it is paid.
payment = {name = "log"}  # inline

[schedule]
rounds = 2   # short
capacity = 4
[recipe]
model = "digits-cnn"
samples = 60
epochs = 3
batch_size = 20
learning_rate = 0.003
[data]
dataset = "digits"
validation = 300
# the last word
"""


#: Seconds: models are trained, on a machine that runs other tests beside them.
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


@pytest.fixture(autouse=True)
def kept(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where measurements are kept, with none in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder := tmp_path_factory.mktemp("cache")))
    return folder / "fedpeer" / "calibrations"


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who trains models fails."""

    def measure(*_: object) -> None:
        raise AssertionError("models are trained")

    monkeypatch.setattr("fedpeer.cli.calibrate.measure", measure)


#: The command by itself.
alone = typer.Typer()
alone.command()(calibrate)


def section(**changes: Any) -> CalibrationSection:
    values: dict[str, Any] = {
        "workload": "00", "recipe": "00", "data": "00", "phi": 300, "upsilon": 200, "kappa": "1.04", "shadows": 100,
        "pairs": 25, "degree": "0.2", "costs": ["0.5", 1], "starts": ["0.3", "0.9"], "sure_scale": "1.3",
        "reached": ["0.05", "0.15"],
    }  # fmt: skip
    return CalibrationSection.model_validate(values | changes)


def calibrated(config: TaskConfig, **changes: Any) -> TaskConfig:
    """`config` with a calibration of itself, or of what `changes` say."""
    of = vars(basis(prepare_task(config, 0.0), config))
    return config.model_copy(update={"calibration": section(**{**of, **changes})})


def test_every_comment_and_line_stays_and_the_numbers_are_others() -> None:
    numbers = {
        "Q": Decimal("7.25"), "phi": Decimal("8.04"), "upsilon": Decimal("0.0000012"),
        "payment.name": "log", "payment.scale": Decimal("0.6"), "rule.stake_micro": 1200,
    }  # fmt: skip
    text = written(FILE, numbers, section())
    kept = [line for line in FILE.splitlines() if not line.startswith(("Q", "phi", "upsilon", "payment"))]
    lines = text.splitlines()
    assert [line for line in lines if line and line in kept] == list(filter(None, kept))
    assert "Q = 7.25          # the paper's" in lines
    assert any(line.startswith("payment = {") and line.endswith("# inline") for line in lines)
    config = parse_config(text, TaskConfig, Path("task.toml"))
    assert (config.Q, config.phi, config.upsilon) == (Decimal("7.25"), Decimal("8.04"), Decimal("0.0000012"))
    assert config.payment.parameters() == {"scale": Decimal("0.6")}
    assert config.rule.stake_micro == 1200
    assert config.calibration == section()
    # Once more with others: nothing stands twice.
    again = written(text, {**numbers, "Q": Decimal(9)}, section(pairs=30))
    assert again.count("[calibration]") == 1
    assert tomllib.loads(again)["calibration"]["pairs"] == 30
    assert tomllib.loads(again)["Q"] == 9


def test_a_second_calibration_stays_where_the_first_is_with_the_comments_around_it() -> None:
    text = written(
        FILE.replace("Q = 1000          # the paper's\nphi = 300\nupsilon = 200\n", ""), {"Q": 1}, section()
    )
    ours = '# Who audits, from May on.\n[audit]\nrate = "1/20"\n'
    again = written(f"{text}unknown = 1\n{ours}", {"Q": 2}, section(pairs=30))
    assert again.endswith(ours)
    assert again.index("[calibration]") < again.index("# Who audits")
    assert (
        tomllib.loads(again)["calibration"]
        == tomllib.loads(written(FILE, {}, section(pairs=30)))["calibration"]
    )
    dotted = "calibration.phi = 1\n" + FILE
    assert tomllib.loads(written(dotted, {}, section()))["calibration"]["pairs"] == 25


def test_a_file_whose_lines_end_as_windows_ends_them_stays_one() -> None:
    text = written(FILE.replace("\n", "\r\n"), {"phi": 3, "payment.scale": 2}, section())
    assert text.count("\n") == text.count("\r\n") > 20
    assert text.replace("\r\n", "\n") == written(FILE, {"phi": 3, "payment.scale": 2}, section())


def test_the_file_that_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").mkdir()
    file = kept / "spring.toml"
    file.write_text(FILE + "# Zürich\n", encoding="utf-8")
    file.chmod(0o640)
    (link := tmp_path / "task.toml").symlink_to(file)
    after = written(read_text(link), {"phi": 3}, section())
    replace_file(link, read_text(link), after)
    assert link.is_symlink()
    assert (file.stat().st_mode & 0o777, list(kept.iterdir())) == (0o640, [file])
    assert read_text(file) == after


def test_a_file_that_cannot_be_replaced_is_as_it_was_and_nothing_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "task.toml"
    file.write_text(FILE)
    with pytest.raises(MarketTaskError, match=r"task\.toml was changed meanwhile, and stays as it is now"):
        replace_file(file, FILE + "# before", "after")

    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as half:
            half.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(
        FolderError, match=r"task\.toml cannot be written: No space left on device; it is as it was"
    ):
        replace_file(file, FILE, "after")
    assert (list(tmp_path.iterdir()), file.read_text()) == ([file], FILE)


#: Asks as somebody to whom permissions apply, once for each line that comes, and answers in one.
_AS_NOBODY = """
import os, sys
from pathlib import Path
from coordinator.calibration import check_replaceable
from coordinator.errors import MarketTaskError
if os.geteuid() == 0:
    os.setuid(65534)
for line in sys.stdin:
    try:
        check_replaceable(Path(line.removesuffix("\\n")))
        print("it can be", flush=True)
    except MarketTaskError as error:
        print(error, flush=True)
"""


def test_a_file_in_a_folder_that_cannot_be_written_is_refused_before_anything_is_trained() -> None:
    command = [sys.executable, "-c", _AS_NOBODY]
    with (
        TemporaryDirectory() as place,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nobody,
    ):
        assert nobody.stdin is not None
        assert nobody.stdout is not None
        (folder := Path(place) / "theirs").mkdir()
        (file := folder / "task.toml").write_text(FILE)
        for path in (Path(place), folder, file):
            path.chmod(0o777)
        for path, mode, refused in ((folder, 0o777, False), (folder, 0o555, True), (file, 0o444, True)):
            path.chmod(mode)
            print(file, file=nobody.stdin, flush=True)
            said = nobody.stdout.readline()
            assert (f"{path} cannot be written; give --dry-run" in said) == refused
            assert (said != "it can be\n") == refused
            path.chmod(0o777)


def test_numbers_that_could_not_be_opened_are_refused() -> None:
    config = task()
    prepared = prepare_task(config, 0.0)
    again = config.model_copy(update={"Q": Decimal(900), "phi": Decimal(12)})
    assert repriced(prepared, again).bill_micro == prepare_task(again, 0.0).bill_micro != prepared.bill_micro
    assert repriced(prepared, again).row.terms.phi == 12
    for changes, said in (
        (
            {"payment": config.payment.model_copy(update={"scale": Decimal(10**12)})},
            "the bill must stay below",
        ),
        ({"Q": config.upsilon}, "Q is .*expected more"),
        (
            {"rule": config.rule.model_copy(update={"claim_penalty": Decimal("1e-300")})},
            "rule.claim_penalty .* digits",
        ),
        ({"budget_micro": 1}, "budget_micro is 1; expected at least"),
    ):
        with pytest.raises(FieldError, match=said):
            repriced(prepared, config.model_copy(update=changes))


def test_numbers_that_were_not_there_are_added_before_the_first_table() -> None:
    without = "\n".join(
        line for line in FILE.splitlines() if not line.startswith(("Q", "phi", "upsilon", "payment"))
    )
    text = written(without, {"Q": Decimal(2), "phi": Decimal(3), "payment.scale": Decimal(4)}, section())
    document = tomllib.loads(text)
    assert (document["Q"], document["phi"], document["payment"]["scale"]) == (2, 3, 4)


def test_a_calibration_of_this_task_has_nothing_said_of_it() -> None:
    config = task()
    assert check_calibration(prepare_task(config, 0.0), calibrated(config)) == ()


def test_a_task_without_one_is_doubted_where_it_could_have_one(tmp_path: Path) -> None:
    config = task()
    [doubt] = check_calibration(prepare_task(config, 0.0), config)
    assert "fedpeer calibrate" in doubt
    (tmp_path / "model").write_bytes(encode_model({"w": np.zeros(3, np.float32)}))
    own = task(
        recipe={"model": "custom"},
        initial_model=tmp_path / "model",
        rule={"name": "paper"},
        data=None,
        reference=["1/2", "1/2"],
    )
    assert check_calibration(prepare_task(own, 0.0), own) == ()
    with pytest.raises(MarketTaskError, match="nothing it could be of"):
        check_calibration(prepare_task(own, 0.0), own.model_copy(update={"calibration": section()}))


def test_a_calibration_of_something_else_is_refused_and_named(tmp_path: Path) -> None:
    made = calibrated(task()).calibration
    (tmp_path / "model").write_bytes(encode_model(initial_weights("digits-cnn", 3)))
    for changes, word in (
        ({"recipe": {"epochs": 3}}, "another recipe"),
        ({"data": {"dataset": "digits", "validation": 301, "test": 100}}, "another D_c"),
        ({"initial_model": tmp_path / "model"}, "another model"),
    ):
        other = task(**changes).model_copy(update={"calibration": made})
        with pytest.raises(
            MarketTaskError, match=f"is of {word} than the task's; run `fedpeer calibrate` again"
        ):
            check_calibration(prepare_task(other, 0.0), other)


def test_numbers_that_were_changed_since_are_refused() -> None:
    config = task(phi=301)
    with pytest.raises(
        MarketTaskError, match="phi is 301 in the task file, and its calibration gave 300; run `fedpeer"
    ):
        check_calibration(prepare_task(config, 0.0), calibrated(config))


def test_terms_of_a_calibrated_task_open_and_stale_ones_do_not(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    file = tmp_path / "task.toml"
    longer = FILE.replace(
        "epochs = 3", "epochs = 12"
    )  # so many that something is learnt from any first model
    config = parse_config(longer, TaskConfig, file)
    of = section(**vars(basis(prepare_task(config, 0.0), config)))
    file.write_text(written(longer, {}, of).replace("epochs = 12", "epochs = 2"))
    stale = CliRunner().invoke(app, ["open", str(file), "-s", str(folder.path), "-y", "--json"])
    assert isinstance(stale.exception, MarketTaskError)
    file.write_text(written(longer, {}, of))
    opened = CliRunner().invoke(app, ["open", str(file), "-s", str(folder.path), "-y", "--json"])
    assert opened.exit_code == 0, opened.output
    assert json.loads(opened.stdout)["doubts"] == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"payment": {"name": "linear"}}, "payment.name is 'linear'"),
        ({"Q": "best"}, "remove both"),
        ({"plan": {}}, "remove both"),
    ],
)
def test_what_a_calibration_does_not_propose_for_is_refused(document: dict[str, Any], said: str) -> None:
    with pytest.raises(MarketTaskError, match=said):
        with_placeholders(document)


def test_calibrating_a_file_gives_numbers_that_it_can_be_opened_with(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(FILE)
    file.chmod(0o640)
    asked = ("calibrate", str(file), "--costs", "0.2", "0.4", "--shadows", "78", "--json")
    done = fedpeer(*asked)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    config = parse_config(file.read_text(), TaskConfig, file)
    assert "# the last word" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert config.phi == Decimal(found["numbers"]["phi"]) > 0
    assert check_calibration(prepared := prepare_task(config, 0.0), config) == ()
    assert prepared.bill_micro == round(Decimal(found["bill"]) * 10**6)
    assert found["equilibria"]["greatest"]["degrees"][1] <= 0.2
    assert found["equilibria"]["greatest"]["payment"] > found["equilibria"]["greatest"]["cost"]
    audits = found["audits"]
    assert audits["pay"] == min(each["payment"] for each in found["equilibria"].values())
    assert audits["gain"] == AUDIT_GAIN * audits["pay"]
    accused = [audits[name] for name in ("rate", "pay", "held_back", "stake", "rounds")]
    lost = deterrence(audits["least_probability"], audits["power"], *accused)
    assert lost >= audits["rounds"] * audits["gain"]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("untrained")
def test_mistakes_are_said_before_anything_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(FILE)
    for arguments, said in (
        (("--costs", "2", "1"), "costs is [2.0, 1.0]; expected the least before the greatest"),
        (("--costs", "1", "2", "--degree", "0.95"), "degree is 0.95; expected above 0 and below 0.9"),
        (
            ("--costs", "1", "2", "--starts", "0.98", "0.3"),
            "starts is [0.98, 0.3]; expected the least before",
        ),
        (("--costs", "1e-7", "2"), "costs is [1e-07, 2.0]; expected at least 0.000001 credits"),
        (("--costs", "1", "1e16"), "costs is [1.0, 1e+16]; expected less: a degree of 0.2 in 2 rounds of 4"),
        (
            ("--costs", "1", "1", "--budget", "1"),
            "budget is 1.0; expected at least 5.6 credits for a degree of 0.2",
        ),
        (("--costs", "1", "2", "--budget", "0"), "budget is 0.0; expected a finite number above 0"),
        (("--costs", "1", "2", "--budget", "nan"), "budget is nan; expected a finite number above 0"),
        (("--costs", "1", "2", "--budget", "1e10"), "expected at most 9007199255 credits"),
        (("--costs", "1", "2", "--audit-gain", "inf"), "--audit-gain is inf; expected a finite number"),
    ):
        refused = CliRunner().invoke(alone, [str(file), *arguments])
        assert said in str(refused.exception)
        assert isinstance(refused.exception, MechanismError | MarketTaskError | CommandError)


@pytest.mark.usefixtures("untrained")
def test_a_file_that_another_process_is_replacing_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "task.toml").write_text(FILE)
    with staged(file):
        refused = CliRunner().invoke(alone, [str(file), "--costs", "1", "2"])
    assert "another process is making" in str(refused.exception)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("budget_micro = 1000000", "budget is 1.0; expected at least 5.6 credits"),
        ("budget_micro = 'all'", "budget_micro"),
        ("budget_micro = 0", "budget is 0.0"),
        ("payment = 'log'", "payment is 'log'; expected a table"),
        ("payment = {name = 'log', slope = 1}", "slope"),
        ("payment = {name = 'log', exponent = 2}", "exponent"),
    ],
)
def test_a_file_that_could_not_take_the_numbers_is_refused_before_anything_is_trained(
    tmp_path: Path, line: str, said: str
) -> None:
    file, ours = tmp_path / "task.toml", 'payment = {name = "log"}  # inline'
    assert ours in FILE
    file.write_text(FILE.replace(ours, line if line.startswith("payment") else f"{line}\n{ours}"))
    refused = CliRunner().invoke(alone, [str(file), "--costs", "1", "1"])
    assert said in str(refused.exception)
    assert isinstance(refused.exception, MechanismError | CoordinatorError)


def test_a_dry_run_says_all_in_words_and_leaves_the_file_and_what_it_measured_serves_other_wishes(
    tmp_path: Path, kept: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "task.toml"
    file.write_text(FILE)
    asked = [str(file), "--costs", "0.2", "0.4", "--shadows", "78", "--dry-run", "--audit-gain", "0.4"]
    shown = CliRunner().invoke(alone, asked)
    assert shown.exception is None
    said = (
        "a fresh pair's loss gap", "What participants would then do", "greatest", "left as it was",
        "The file has no [audit]", "A trick that gains 0.4 credits a round",
        "make it lose over the task; at a probability of 0.1",
    )  # fmt: skip
    for words in said:
        assert words in shown.output
    assert file.read_text() == FILE
    [measured] = kept.iterdir()
    request.getfixturevalue("untrained")
    # What the effort costs, and a little: who makes none is not kept from it by so little.
    poor = CliRunner().invoke(alone, [*asked, "--budget", "2.3"])
    assert "budget is 2.3; expected at least" in str(poor.exception)
    assert f"What was measured is kept in {measured}" in poor.stderr
    again = CliRunner().invoke(alone, asked)
    assert f"Measured by an earlier call, {datetime.now(UTC).year}" in again.output
    assert again.output.splitlines()[1:] == shown.output.splitlines()
    assert "s here, a round's" in again.output
    elsewhere = json.loads(measured.read_text()) | {"machine": "another"}
    measured.write_text(json.dumps(elsewhere))  # in a folder that several machines have
    again = CliRunner().invoke(alone, asked)
    assert "Measured by an earlier call on another, " in again.output
    assert "s on another, a round's" in again.output
    damaged = measured.read_text().replace("kappa", "kapp")
    for text in ("", "[]", damaged):  # is measured again
        measured.write_text(text)
        assert "models are trained" in str(CliRunner().invoke(alone, asked).exception)


def test_what_is_kept_is_of_this_model_recipe_and_data_and_of_these_shadows(tmp_path: Path) -> None:
    config = task()
    prepared = prepare_task(config, 0.0)
    places = {Kept(prepared, config, 78).path, Kept(prepared, config, 79).path}
    for changes in (
        {"recipe": {"epochs": 3}},
        {"data": {"dataset": "digits", "validation": 301}},
        {"seed": 8},
    ):
        other = task(**changes)
        places.add(Kept(prepare_task(other, 0.0), other, 78).path)
    assert len(places) == 5
    dearer = config.model_copy(update={"Q": Decimal(900)})
    assert Kept(prepare_task(dearer, 0.0), dearer, 78).path in places


def test_what_cannot_be_kept_is_measured_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file := tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    config = task()
    keeper = Kept(prepare_task(config, 0.0), config, 78)
    assert not keeper.put(MeasuredGaps(1.0, 1.0, 1.0, 78, 200, 19, 0.95, 1.0, 0.1))
    assert keeper.find() is None


@pytest.mark.parametrize(
    "changes",
    [
        {"at": 1e300},
        {"at": float("nan")},
        {"at": -1e18},
        {"at": "1e5"},
        {"phi": float("nan")},
        {"phi": 0},
        {"upsilon": float("inf")},
        {"kappa": 10**400},
        {"training_seconds": "1"},
        {"of": "another"},
        {"machine": None},
        {"machine": "a\x1bb"},
    ],
    ids=str,
)
def test_what_no_calibration_has_kept_is_not_read_but_measured_again(changes: dict[str, Any]) -> None:
    config = task()
    keeper = Kept(prepare_task(config, 0.0), config, 78)
    gaps = MeasuredGaps(1.0, 1.0, 1.0, 78, 200, 19, 0.95, 1.0, 0.1)
    assert keeper.put(gaps)
    assert (found := keeper.find()) is not None
    assert found[0] == gaps
    document = json.loads(keeper.path.read_text())
    for name, value in changes.items():
        (document if name in document else document["gaps"])[name] = value
    keeper.path.write_text(json.dumps(document))
    assert keeper.find() is None
    keeper.path.write_text("[" * 100_000)
    assert keeper.find() is None


@pytest.mark.parametrize("library", ["fedpeer", "numpy", "scikit-learn", "torch"])
def test_another_version_of_what_trains_or_measures_measures_again(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = task()
    prepared = prepare_task(config, 0.0)
    place = Kept(prepared, config, 78).path
    monkeypatch.setattr(
        "coordinator.calibration.version", lambda name: "0.0.1" if name == library else version(name)
    )
    assert Kept(prepared, config, 78).path != place
