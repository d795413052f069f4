"""Tasks of an operator's own workload, data and strata: opened from a task file, proved, scored after a restart."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coordinator import dry_round
from coordinator.calibration import measure
from coordinator.config import TaskConfig, read_config, resolve_paths
from coordinator.dry_round import prove
from coordinator.errors import ConfigError, MarketTaskError
from coordinator.learner_data import commit_validation
from coordinator.opening import PreparedTask, prepare_task
from coordinator.scoring import make_scorer
from coordinator.workload import end, folder_of, workload_of
from fedpeer.learning.brought import brought_samples
from fedpeer.learning.errors import DataError, WorkloadError
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.loading import FactorySource
from mechanism.errors import FieldError
from mechanism.terms import Terms
from mechanism.variation import Allowed
from mechanism.workload import Coded, Column, Labels, Quantiles

MODULE = """
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import SGDRegressor
from torch import nn

from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.baseline import MeanWorkload
from fedpeer.learning.workloads.sklearn import SklearnWorkload
from fedpeer.learning.workloads.torch import TorchWorkload
from own_layers import WIDTH

sources = ["own_layers.py"]


def mlp(hidden=WIDTH):
    return TorchWorkload(
        lambda: nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, 2)), classes=2
    )


def adapted():
    def made():
        base = nn.Linear(2, 4).requires_grad_(False)
        kept = torch.from_numpy(np.load(Path(__file__).with_name("base.npy")))
        base.load_state_dict({"weight": kept, "bias": torch.zeros(4)})
        return nn.Sequential(base, nn.ReLU(), nn.Linear(4, 2))

    return TorchWorkload(made, classes=2, travels="trained")


def normed():
    return TorchWorkload(lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), classes=2)


def linear():
    return SklearnWorkload(SGDRegressor(eta0=0.05, learning_rate="constant", alpha=0.0), features=2)


def mean():
    return MeanWorkload()


def halves():
    return TorchWorkload(lambda: nn.Linear(2, 2), classes=2.0)


def three():
    return TorchWorkload(lambda: nn.Linear(2, 3), classes=3)


def nowhere():
    return TorchWorkload(lambda: nn.Linear(2, 2), lambda outputs, targets: outputs.sum(1) / 0 * 0, classes=2)


def breaks():
    return TorchWorkload(
        lambda: nn.Linear(2, 2),
        lambda outputs, targets: outputs.sum(1) * (float("nan") if outputs.requires_grad else 1.0),
        classes=2,
    )


def lists():
    return Samples([[0.0, 1.0]] * 40, [0, 1] * 20)


def two_texts():
    return Samples(np.zeros((40, 2)), np.array([["no", "yes"]] * 40))


def misplaced():
    inputs = np.random.default_rng(0).normal(size=(80, 2))
    return Samples(inputs, np.arange(80) % 2), Samples(inputs, np.full(80, -100))


def since(when):
    return rows()


def far():
    return lambda samples: np.arange(len(samples)) * 10**9


def alike():
    return lambda samples: np.zeros(len(samples), int)


def sides():
    return lambda samples: (samples.inputs[:, 0] > 0).astype(int)


def drawn():
    return lambda samples: np.random.default_rng().integers(0, 2, len(samples))


def rows(count=80):
    inputs = np.random.default_rng(0).normal(size=(count, 2))
    return Samples(inputs, inputs.sum(axis=1), {"site": np.arange(count) % 3})


class Pairs:
    def __len__(self):
        return 40

    def __getitem__(self, row):
        if row >= 40:
            raise IndexError(row)
        return np.full((1, 4, 4), row / 40, dtype=np.float32), row % 2


def ragged():
    return [(np.zeros(row), 0) for row in (3, 4)]


def by_sign():
    return lambda samples: (np.asarray(samples.inputs)[:, 0] > 0).astype(np.int64)
"""

TASK = """
id = "own"
Q = 1000
phi = 300
upsilon = 200
seed = 7
{top}
[rule]
name = "{rule}"
[schedule]
rounds = 2
capacity = 4
[recipe]
model = "{model}"
samples = 120
batch_size = 20
epochs = 6
learning_rate = 0.01
{recipe}
[data]
{data}
"""

TABLE = 'file = "table.csv"\ninputs = ["a", "b"]\n'
CLASSES = TABLE + 'target = "late"\nholdout = 0.2'
MEASURED = TABLE + 'target = "delay"\nholdout = 0.2'
FIFTHS = 'strata = { quantiles = 5, of = "target" }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task file's folder: a module, what it is made of, and a table."""
    made = tmp_path_factory.mktemp("own")
    (made / "own_models.py").write_text(MODULE)
    (made / "own_layers.py").write_text("WIDTH = 8\n")
    np.save(made / "base.npy", np.ones((4, 2), np.float32))
    generator = np.random.default_rng(0)
    a, b, noise = generator.normal(size=(3, 400))
    delay = 2 * a - b + 0.3 * noise
    lines = [
        f"{x!r},{y!r},{'yes' if d > 0 else 'no'},{d!r},{site},{shuffled!r},{10**12 * (d > 0)},{max(0.0, d)!r}"
        for x, y, d, site, shuffled in zip(
            a.tolist(),
            b.tolist(),
            delay.tolist(),
            "abca" * 100,
            generator.permutation(delay).tolist(),
            strict=True,
        )
    ]
    (made / "table.csv").write_text("\n".join(["a,b,late,delay,site,noise,cents,fee", *lines]) + "\n")
    (made / "other.csv").write_text("a,b,late\n1,2,soon\n")
    return made


#: A task of each workload, by which its process can be ended.
OPENED: list[PreparedTask] = []


def prepared(
    folder: Path, model: str, data: str, top: str = "", rule: str = "paper", recipe: str = ""
) -> PreparedTask:
    options = "[recipe.options]\nhidden = 4" if model.endswith(":mlp") else ""
    text = TASK.format(model=model, data=data, top=top, recipe=f"{recipe}\n{options}", rule=rule)
    (file := folder / "task.toml").write_text(text)
    task = prepare_task(resolve_paths(read_config(file, TaskConfig), file.parent), 0.0)
    if all(task.row.terms.recipe != other.row.terms.recipe for other in OPENED):
        OPENED.append(task)
    return task


@pytest.fixture(scope="module", autouse=True)
def _ending(folder: Path) -> Iterator[None]:
    """The processes of the workloads end with the tests."""
    yield
    for task in OPENED:
        end(workload_of(task.row.terms.recipe, folder_of(task.row.settings)))


def test_a_table_with_a_perceptron_is_opened_proved_and_scored_after_a_restart(folder: Path) -> None:
    task = prepared(folder, "own_models:mlp", CLASSES)
    terms = task.row.terms
    assert Terms.parse(terms.canonical) == terms
    assert terms.recipe.source is not None
    assert terms.recipe.source.keywords == {"hidden": 4}
    assert set(terms.recipe.source.digests) == {"own_models.py", "own_layers.py"}
    assert (terms.strata, terms.classes) == (Labels(), ("no", "yes"))
    assert terms.columns is not None
    assert (terms.columns.inputs, terms.columns.target, terms.columns.layout) == (("a", "b"), "late", "array")
    assert list(map(str, terms.arrays)) == ["inputs float64 of shape 2", "targets int64"]
    assert {spec.name for spec in terms.contract.tensors} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    proof = prove(task)
    assert proof.accuracy is not None
    assert proof.accuracy[1] > 0.8
    assert proof.doubts == ()
    # A coordinator that has started again knows the row alone.
    scorer = make_scorer(task.row)
    (path := folder / "start").write_bytes(task.initial_model)
    found = scorer.evaluate(path)
    assert found is not None
    assert found.accuracy is not None
    scorer.close()
    layers = folder / "own_layers.py"
    text = layers.read_text()
    layers.write_text(text + "# another\n")
    with pytest.raises(MarketTaskError, match=r"own_models:mlp is not the task's: own_layers.py is another"):
        make_scorer(task.row)
    layers.write_text(text)
    table = folder / "table.csv"
    table.write_text((before := table.read_text()).replace("yes", "no", 1))
    with pytest.raises(MarketTaskError, match="not those that its terms commit to"):
        make_scorer(task.row)
    table.write_text(before)


def test_a_frozen_base_that_does_not_travel_is_in_the_terms(folder: Path, tmp_path: Path) -> None:
    terms = prepared(folder, "own_models:adapted", CLASSES).row.terms
    assert {spec.name for spec in terms.contract.tensors} == {"2.weight", "2.bias"}
    assert terms.recipe.source is not None
    assert len(terms.recipe.source.frozen) == 32
    assert workload_of(terms.recipe, folder) is not None
    for name in ("own_models.py", "own_layers.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    np.save(tmp_path / "base.npy", np.zeros((4, 2), np.float32))
    with pytest.raises(WorkloadError, match=r"own_models:adapted makes another frozen base than the task's"):
        workload_of(terms.recipe, tmp_path)


def test_a_regression_is_proved_by_its_losses_alone(folder: Path) -> None:
    task = prepared(folder, "own_models:linear", MEASURED, FIFTHS)
    assert isinstance(task.row.terms.strata, Quantiles)
    assert task.row.terms.classes == ()
    assert task.row.terms.strata_names[0].startswith("below ")
    assert task.data is not None
    assert task.data.test is not None
    assert (len(task.data.validation), len(task.data.test), task.data.counts()) == (320, 80, (64,) * 5)
    proof = prove(task)
    assert proof.accuracy is None
    assert proof.loss is not None
    assert proof.loss[1] < proof.loss[0] / 5
    assert "the first model's mean loss is" in proof.sentence()
    assert proof.doubts == ()
    scorer = make_scorer(task.row, task.data)
    (path := folder / "start").write_bytes(task.initial_model)
    found = scorer.evaluate(path)
    assert found is not None
    assert found.figures().keys() == {"loss"}


@pytest.mark.parametrize(
    ("model", "data"), [("linear", TABLE + 'target = "noise"'), ("mean", MEASURED)], ids=["noise", "mean"]
)
def test_what_knows_nothing_of_its_targets_is_said(folder: Path, model: str, data: str) -> None:
    [doubt] = prove(prepared(folder, f"own_models:{model}", data, FIFTHS)).doubts
    assert "knows nothing of the targets of the other" in doubt


def test_strata_may_be_a_column_or_what_a_factory_gives(folder: Path) -> None:
    site = prepared(folder, "own_models:mlp", CLASSES, 'strata = { column = "site" }')
    assert site.row.terms.strata == Column("site", ("a", "b", "c"))
    assert site.data is not None
    assert len(site.row.terms.reference) == 3
    sign = prepared(
        folder,
        "own_models:mlp",
        CLASSES,
        'strata = { factory = "own_models:by_sign", names = ["minus", "plus"] }',
    )
    assert isinstance(sign.row.terms.strata, Coded)
    assert sign.row.terms.strata_names == ("minus", "plus")
    assert sign.data is not None
    assert np.array_equal(sign.data.codes, np.asarray(sign.data.validation.inputs)[:, 0] > 0)
    # Again from the row alone.
    make_scorer(sign.row)


def test_a_task_says_what_may_vary_where_its_workload_follows_it(folder: Path) -> None:
    varying = 'weight_decay = 0.01\nallowed = { epochs = 1, learning_rate = 0.25, precision = ["float64"] }'
    task = prepared(folder, "own_models:mlp", CLASSES, recipe=varying)
    recipe = task.row.terms.recipe
    assert (recipe.weight_decay, recipe.momentum) == (Decimal("0.01"), Decimal("0.9"))
    assert recipe.allowed == Allowed(epochs=1, learning_rate=Decimal("0.25"), precision=("float64",))
    for refused, said in (
        (
            "allowed = { learning_rate = 0.25, epochs = 1 }",
            r"recipe is 'learning_rate'; expected none of these",
        ),
        ("weight_decay = 0.1", r"recipe is 'weight_decay'"),
        ("allowed = { learning_rate = 1 }", r"allowed\.learning_rate"),
        ("allowed = {}", "allowed is 'nothing'"),
    ):
        with pytest.raises((FieldError, MarketTaskError), match=said):
            prepared(folder, "own_models:linear", MEASURED, FIFTHS, recipe=refused)


def test_data_may_come_from_a_factory_or_a_folder_of_images(folder: Path) -> None:
    rows = prepared(
        folder, "own_models:linear", 'factory = "own_models:rows"', 'strata = { column = "site" }'
    )
    assert rows.data is not None
    assert (len(rows.data.validation), rows.data.counts()) == (80, (27, 27, 26))
    (folder / "start").write_bytes(rows.initial_model)
    for name in ("cat", "dog"):
        (folder / "pets" / name).mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 90).save(folder / "pets" / name / "one.png")
    pets = prepared(folder, "custom", 'folder = "pets"', 'initial_model = "start"')
    assert pets.row.terms.classes == ("cat", "dog")
    assert pets.data is not None
    assert pets.data.notes == ()
    (folder / "pets" / "cat" / "two.gif").write_bytes(b"GIF89a")
    pets = prepared(folder, "custom", 'folder = "pets"', 'initial_model = "start"')
    assert any(
        "1 file that is left out (1 .gif; the first is cat/two.gif)" in doubt for doubt in prove(pets).doubts
    )
    (folder / "pets" / "cat" / "one.png").unlink()
    with pytest.raises(MarketTaskError, match=r"pets/cat has no image .*remove it .*\(1 \.gif; "):
        prepared(folder, "custom", 'folder = "pets"', 'initial_model = "start"')


def test_a_data_set_of_pairs_becomes_samples(folder: Path) -> None:
    def brought(name: str) -> Samples:
        return brought_samples(FactorySource(f"own_models:{name}", folders=(str(folder),)))[0]

    pairs = brought("Pairs")
    assert np.asarray(pairs.inputs).shape == (40, 1, 4, 4)
    assert pairs.targets.tolist() == [0, 1] * 20
    with pytest.raises(
        DataError, match=r"gives inputs of the shapes \[\(3,\), \(4,\)\]; expected one for all"
    ):
        brought("ragged")
    with pytest.raises(DataError, match="gives a MeanWorkload; expected Samples"):
        brought("mean")


@pytest.mark.parametrize(
    ("model", "data", "top", "said"),
    [
        ("own_models:absent", CLASSES, "", "own_models:absent cannot be imported"),
        ("absent:mlp", CLASSES, "", "there is no module absent in"),
        ("own_models:mlp", MEASURED, "", "the target is measured, so that labels are no strata"),
        ("own_models:mlp", MEASURED, FIFTHS, "tells 2 classes apart, and a target"),
        ("own_models:mlp", CLASSES, 'strata = "labels"', 'expected "label", or a table'),
        ("own_models:mlp", CLASSES, 'strata = { of = "target" }', "expected one of quantiles, column and factory"),
        ("own_models:mlp", CLASSES, 'strata = { column = "town" }', "has no town"),
        ("own_models:mlp", CLASSES, 'strata = { quantiles = 3, of = "site" }', "one finite number a sample of site"),
        ("own_models:mlp", TABLE, "", "names inputs and no target"),
        ("own_models:mlp", TABLE.replace('"b"', '"a"') + 'target = "late"', "", "data.inputs is .*each once"),
        ("own_models:mlp", TABLE + 'target = "a"', "", "data.target is 'a'; expected a column that is no input"),
        ("own_models:mlp", 'file = "table.csv"', "", "names no columns of"),
        ("own_models:mlp", CLASSES + '\nfolder = "pets"', "", "exactly one of dataset, file, folder and factory"),
        ("own_models:mlp", 'dataset = "digits"\ntarget = "y"', "", "target belongs to file"),
        ("own_models:mlp", 'dataset = "digits"', "", "tells 2 classes apart"),
        ("own_models:mlp", 'file = "table.csv"\ninputs = ["a"]\ntarget = "late"', "",
            r"cannot read D_c: .*; it was given inputs float64 of shape \(\d+, 1\), targets int64 of shape"),
        ("custom", CLASSES, "", "initial_model is None; expected a safetensors file"),
        ("digits-cnn", CLASSES, "", r"reads images of \(1, 8, 8\)"),
        ("own_models:halves", CLASSES, "", r"classes are 2\.0; expected a whole number of at least 2, or None"),
        ("own_models:three", CLASSES, "", "tells 3 classes apart, and the learner's data 'table' have 2 labels"),
        ("own_models:nowhere", CLASSES, "", "losses that are NaN or infinite for 64 of the first 64 samples of D_c"),
        ("own_models:mlp", 'factory = "own_models:lists"', "", "gives inputs as a list; expected an array"),
        ("own_models:mlp", 'factory = "own_models:two_texts"', "", r"has \(2,\) texts a sample; expected one"),
        ("own_models:mlp", 'factory = "own_models:misplaced"', "", "a target of the held-out samples of the learner's"),
        ("own_models:mlp", CLASSES + "\nseed = -1", "", "data.seed is -1; expected at least 0"),
        ("own_models:mlp", 'factory = "own_models:since"\noptions = { when = 2024-01-01 }', "",
            "data.options: expected values that JSON has: Object of type date"),
        ("own_models:mlp", 'factory = "own_models:since"\noptions = { when = nan }', "", "data.options: expected"),
        ("own_models:mlp", CLASSES, 'strata = { factory = "own_models:far" }', "gives strata up to 319000000000"),
        ("own_models:mlp", CLASSES, 'strata = { factory = "own_models:alike" }', "all samples of D_c the stratum 0"),
        ("own_models:mlp", CLASSES, 'strata = { factory = "own_models:drawn" }', "a second call gives the same sam"),
        ("own_models:mlp", CLASSES, 'strata = { factory = "own_models:far", options = { when = 2024-01-01 } }',
            "strata.options: expected values that JSON has"),
        ("own_models:mlp", TABLE + 'target = "late"\ntest_file = "other.csv"', "",
            r"other\.csv does not go with D_c: a label is 'soon'"),
        ("own_models:linear", TABLE + 'target = "cents"', "", "there are 1000000000001: at most 2000"),
        ("own_models:mlp", CLASSES, 'strata = { quantiles = 3, of = "fee" }', "the values of fee repeat so often"),
        ("own_models:mlp", CLASSES, 'folder = "elsewhere"', "folder is '.*elsewhere'; expected a folder that is there"),
    ],
)  # fmt: skip
def test_what_cannot_be_opened_is_refused_in_a_sentence(
    folder: Path, model: str, data: str, top: str, said: str
) -> None:
    with pytest.raises((MarketTaskError, FieldError, ConfigError, WorkloadError), match=said) as refused:
        prepared(folder, model, data, top)
    assert "Traceback" not in str(refused.value)


def test_weights_that_training_makes_nan_are_no_weights_that_hardly_move(folder: Path) -> None:
    with pytest.raises(MarketTaskError, match=r"is refused, as participants' models would be: .*NaN"):
        prove(prepared(folder, "own_models:breaks", CLASSES))


def test_too_few_samples_of_a_stratum_are_named_before_anything_is_trained(folder: Path) -> None:
    strata = 'strata = { factory = "own_models:sides", names = ["left", "right", "top"] }'
    task = prepared(folder, "own_models:breaks", CLASSES, strata, rule="verified")
    for needs in (prove, lambda task: measure(task, 100, lambda trained, of: None)):
        with pytest.raises(
            MarketTaskError, match="D_c has 0 samples of stratum top; expected at least 10 of each"
        ):
            needs(task)


def test_a_reference_with_an_empty_stratum_is_refused_where_evidence_pays(folder: Path) -> None:
    empty = 'reference = ["1", "0"]'
    with pytest.raises(FieldError, match=r"reference is .*; expected a share above 0 of each stratum"):
        prepared(folder, "own_models:mlp", CLASSES, empty, rule="verified")


@pytest.mark.parametrize(
    ("model", "data", "top"),
    [pytest.param("mlp", CLASSES, "", marks=pytest.mark.extended), ("linear", MEASURED, FIFTHS)],
)
def test_evidence_is_had_of_an_own_workload(folder: Path, model: str, data: str, top: str) -> None:
    """Its shadows are trained by worker processes, and three participants are paid on what they show."""
    progress: list[str] = []
    proof = prove(prepared(folder, f"own_models:{model}", data, top, rule="verified"), progress.append)
    assert proof.evidence_seconds is not None
    assert progress[-1] == "training shadow models: 40 of 40"
    assert "measuring and settling a round of three" in progress
    # What a line learns of a target hardly hangs on which of its samples it saw.
    assert [d.split(":")[0] for d in proof.doubts] == (
        [] if model == "mlp" else ["models hardly show what they were trained on"]
    )


def test_strata_that_do_not_change_what_is_learnt_are_said(folder: Path) -> None:
    """Where a sample comes from has nothing to do with its target."""
    site = 'strata = { column = "site" }'
    proof = prove(prepared(folder, "own_models:mlp", CLASSES, site, rule="verified"))
    assert any("models hardly show what they were trained on" in doubt for doubt in proof.doubts)


def test_a_stratum_of_few_samples_is_said(folder: Path) -> None:
    """No half of D_c has an eighth of a round's samples of it."""
    table = (folder / "table.csv").read_text().splitlines()
    rare = [line for line in table[1:] if ",yes," in line][:20]
    (folder / "rare.csv").write_text(
        "\n".join([table[0], *(line for line in table if ",no," in line), *rare]) + "\n"
    )
    task = prepared(folder, "own_models:mlp", CLASSES.replace("table", "rare"), rule="verified")
    [doubt] = dry_round._scarce(task, True)
    assert "samples of stratum yes; expected at least 30 for rounds of 120 samples" in doubt


def test_the_commitment_is_to_every_array_its_name_type_and_shape() -> None:
    inputs, targets = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
    texts = np.array(["a", "bc", ""])
    plain = Samples({"x": inputs, "t": texts}, targets, {"c": targets})

    def of(samples: Samples | None, salt: bytes = b"") -> str:
        return commit_validation(samples, salt).hex()

    same = Samples(
        {"x": np.asfortranarray(inputs).astype(">f8"), "t": texts.astype("<U9")},
        targets.astype(">i8"),
        {"c": targets},
    )
    assert of(same) == of(plain)
    others: list[Any] = [
        None,
        Samples({"x": inputs.astype(np.float32), "t": texts}, targets, {"c": targets}),
        Samples({"y": inputs, "t": texts}, targets, {"c": targets}),
        Samples({"x": inputs, "t": np.array(["ab", "c", ""])}, targets, {"c": targets}),
        Samples({"x": inputs, "t": texts}, targets[::-1], {"c": targets}),
        Samples({"x": inputs, "t": texts}, targets),
        Samples(inputs, targets),
        Samples(inputs.reshape(3, 1, 2), targets),
    ]
    assert len({of(other) for other in [plain, *others]} | {of(plain, b"salt")}) == len(others) + 2


def test_a_model_that_grows_with_its_inputs_is_refused_with_the_tensor_that_does(folder: Path) -> None:
    """The running variance of columns in the thousands is no diverged training."""
    header, *rows = [line.split(",") for line in (folder / "table.csv").read_text().splitlines()]
    wide = [[str(float(a) * 1000), *rest] for a, *rest in rows]
    (folder / "wide.csv").write_text("\n".join(map(",".join, [header, *wide])) + "\n")
    data = CLASSES.replace("table.csv", "wide.csv")
    with pytest.raises(MarketTaskError, match=r"most of it is tensor 0.running_var, .*scale inputs"):
        prove(prepared(folder, "own_models:normed", data, rule="verified"))
