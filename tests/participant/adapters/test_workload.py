"""Participants that train the very workload that the terms name."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpeer.cli.audit import _opened
from fedpeer.learning.errors import DataError
from fedpeer.learning.models import initial_weights
from fedpeer.learning.samples import Samples
from fedpeer.learning.workloads.loading import WorkloadSource
from fedpeer.learning.workloads.protocol import frozen_of
from fedpeer.protocol.model_file import contract_of
from mechanism.terms import Recipe, Rule, Terms
from mechanism.variation import Allowed
from mechanism.workload import ArrayForm, Column, Columns, Labels, Quantiles, source_of
from participant.adapters.counting import count, count_column, count_labels, count_quantiles
from participant.adapters.workload import SkewedTask, WorkloadTask, fitted, read
from participant.errors import TaskError, TrainingError
from participant.task import TrainingRound
from participant.work import LocalTrainer, other_size
from tests.participant.adapters.test_torch import terms_for

pytestmark = pytest.mark.arithmetic

MODULE = """
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import SGDClassifier, SGDRegressor
from torch import nn

from fedpeer.learning.workloads.sklearn import SklearnWorkload
from fedpeer.learning.workloads.torch import TorchWorkload
from {layers} import hidden

sources = ["{layers}.py"]


def perceptron(width=3, classes=3):
    def made():
        return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    return TorchWorkload(made, classes=classes)


def price(width=3):
    return TorchWorkload(lambda: nn.Linear(width, 1), "squared_error")


def linear(width=3):
    return SklearnWorkload(SGDClassifier(loss="log_loss"), features=width, classes=3)


def halves():
    return lambda samples: (samples.inputs[:, 0] > 0).astype(int)


def adapted(width=3, classes=3):
    # A frozen base, from a file that is none of the sources.
    def made():
        base = nn.Linear(width, hidden).requires_grad_(False)
        kept = torch.from_numpy(np.load(Path(__file__).with_name("base.npy")))
        base.load_state_dict({{"weight": kept, "bias": torch.zeros(hidden)}})
        return nn.Sequential(base, nn.ReLU(), nn.Linear(hidden, classes))

    return TorchWorkload(made, classes=classes, travels="trained")
"""


class Shop:
    """A folder with the operator's factory, and terms that name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Python keeps modules by their names, so each test has names of its own.
        self.module, self.layers = f"shop_{abs(hash(folder))}", f"layers_{abs(hash(folder))}"
        (folder / f"{self.module}.py").write_text(MODULE.format(layers=self.layers))
        (folder / f"{self.layers}.py").write_text("hidden = 16\n")

    def source(self, name: str, options: Mapping[str, Any] | None = None) -> WorkloadSource:
        return WorkloadSource(f"{self.module}:{name}", options or {}, (str(self.folder),))

    def terms(
        self, name: str = "perceptron", options: Mapping[str, Any] | None = None, **others: Any
    ) -> Terms:
        source = self.source(name, options)
        workload = source.load()
        recipe = Recipe(
            source.factory, epochs=3, batch_size=8, optimizer="sgd", learning_rate=Decimal("0.1"), samples=30,
            source=source_of(source.options, source.files()),
        )  # fmt: skip
        made = terms_for(workload.build(0), recipe)
        return replace(made, **{"reference": (Fraction(1, 3),) * 3, "rule": Rule("paper"), **others})


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def samples(n: int = 60, seed: int = 0) -> Samples:
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    return Samples((np.eye(3)[labels] * 3 + generator.normal(size=(n, 3))).astype(np.float32), labels)


def task(shop: Shop, data: Any = None, **options: Any) -> WorkloadTask:
    return WorkloadTask(samples() if data is None else data, folders=[shop.folder], **options)


@pytest.mark.parametrize("name", ["perceptron", "linear"])
def test_it_trains_as_the_learner_does(shop: Shop, name: str) -> None:
    terms, mine = shop.terms(name), task(shop, seed=3)
    mine.prepare(terms)
    assert mine.counts() == (20, 20, 20)
    start = shop.source(name).load().build(0)
    told: list[float] = []
    round_ = TrainingRound(terms, "ada", 1, None, lambda done, figures: told.append(done))
    made = mine.train(start, round_)
    assert made.samples == 60
    assert told == [1 / 3, 2 / 3, 1.0]
    assert made.metrics["accuracy"] > 0.8
    assert mine.metrics(made.weights) == made.metrics
    learners = shop.source(name).load().train(start, samples(), terms.recipe, round_.seed(3))
    assert all((made.weights[key] == learners[key]).all() for key in learners)


def test_an_architecture_of_fedpeers_by_its_name(shop: Shop) -> None:
    generator = np.random.default_rng(0)
    images, labels = generator.random((30, 1, 8, 8), dtype=np.float32), np.arange(30) % 10
    terms = terms_for(
        initial_weights("digits-cnn", 0), Recipe("digits-cnn", 1, 10, "adam", Decimal("0.01"), 30)
    )
    mine = WorkloadTask(images, labels)
    mine.prepare(terms)
    assert sum(mine.counts()) == 30
    made = mine.train(initial_weights("digits-cnn", 0), TrainingRound(terms, "ada", 1))
    assert set(made.metrics) == {"loss", "accuracy"}


def test_images_of_an_npz_are_read_as_the_learners_own_are_and_held_to_their_scale(tmp_path: Path) -> None:
    terms = terms_for(
        initial_weights("digits-cnn", 0), Recipe("digits-cnn", 1, 10, "adam", Decimal("0.01"), 30)
    )
    images = np.random.default_rng(0).integers(0, 17, (30, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(30) % 10)
    mine = WorkloadTask(tmp_path / "mine.npz")
    mine.prepare(terms)
    assert mine.samples.inputs.dtype == np.float32
    assert (mine.samples.inputs == images).all()
    np.savez(tmp_path / "mine.npz", images=images * 15, labels=np.arange(30) % 10)
    with pytest.raises(TaskError, match=r"the images have values up to 240; expected the learner's scale"):
        WorkloadTask(tmp_path / "mine.npz").prepare(terms)
    with pytest.raises(TaskError, match="images cannot be read: there is no such file or folder"):
        WorkloadTask(tmp_path / "images").prepare(terms)


def test_a_regression_has_a_loss_and_no_accuracy(shop: Shop) -> None:
    strata = Quantiles("target", (Decimal("-0.5"), Decimal("0.5")))
    terms = shop.terms("price", strata=strata)
    inputs = samples().inputs
    mine = task(shop, Samples(inputs, np.asarray(inputs)[:, 0] - 1))
    mine.prepare(terms)
    assert sum(mine.counts()) == 60
    made = mine.train(shop.source("price").load().build(0), TrainingRound(terms, "ada", 1))
    assert set(made.metrics) == {"loss"}


def test_another_file_is_named(shop: Shop) -> None:
    terms = shop.terms()
    (shop.folder / f"{shop.layers}.py").write_text("hidden = 16 + 0\n")
    with pytest.raises(TaskError, match=rf"not the task's: {shop.layers}\.py is another") as caught:
        task(shop).prepare(terms)
    assert caught.value.public == "the participant's workload cannot be used"
    digests = {**shop.source("perceptron").files(), "more.py": "00" * 32}
    terms = replace(terms, recipe=replace(terms.recipe, source=source_of({}, digests)))
    with pytest.raises(TaskError, match=r"more\.py is missing here"):
        task(shop).prepare(terms)


def test_another_frozen_base_is_refused(shop: Shop, tmp_path: Path) -> None:
    base = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    np.save(tmp_path / "base.npy", base)
    terms = shop.terms("adapted")
    assert {spec.name for spec in terms.contract.tensors} == {"2.bias", "2.weight"}
    source = terms.recipe.source
    assert source is not None
    frozen = bytes.fromhex(frozen_of(shop.source("adapted").load()))
    terms = replace(terms, recipe=replace(terms.recipe, source=replace(source, frozen=frozen)))
    assert Terms.parse(terms.canonical) == terms
    task(shop).prepare(terms)
    (other := tmp_path / "other").mkdir()
    for name in (f"{shop.module}.py", f"{shop.layers}.py"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    base[0, 0] += 1e-6
    np.save(other / "base.npy", base)
    with pytest.raises(
        TaskError, match="makes another frozen base than the task's: its tensors that do not travel"
    ):
        WorkloadTask(samples(), folders=[other]).prepare(terms)


def test_a_folder_without_the_factory(shop: Shop, tmp_path: Path) -> None:
    terms = shop.terms()
    with pytest.raises(
        TaskError, match=f"{shop.module}.* cannot be imported|there is no module {shop.module}"
    ):
        WorkloadTask(samples(), folders=[tmp_path / "elsewhere"]).prepare(terms)


def test_a_model_that_no_workload_has(shop: Shop) -> None:
    recipe = replace(shop.terms().recipe, model="custom", source=None)
    with pytest.raises(TaskError, match='model is "custom"'):
        task(shop).prepare(replace(shop.terms(), recipe=recipe))


def test_a_contract_of_other_tensors(shop: Shop) -> None:
    other = contract_of(shop.source("price").load().build(0), Decimal(1000), 10**6)
    with pytest.raises(TaskError, match=r"differ at 0\.bias, 0\.weight, 2\.bias"):
        task(shop).prepare(replace(shop.terms(), contract=other))


def test_a_classifier_of_other_classes_than_the_task(shop: Shop) -> None:
    terms = shop.terms(reference=(Fraction(1, 2),) * 2)
    with pytest.raises(TaskError, match="has 3 classes, the task 2"):
        task(shop).prepare(terms)


CLASSES = ("ant", "bee", "cat")


def test_class_names_are_read_by_the_terms(shop: Shop) -> None:
    terms = shop.terms(classes=CLASSES)
    named = [CLASSES[label] for label in samples().targets.tolist()]
    mine = WorkloadTask(samples().inputs, named, folders=[shop.folder])
    mine.prepare(terms)
    assert mine.counts() == (20, 20, 20)
    assert mine.samples.targets.tolist() == samples().targets.tolist()
    with pytest.raises(TaskError, match="a label is 'dog'; expected one of the classes"):
        WorkloadTask(samples().inputs, [*named[:-1], "dog"], folders=[shop.folder]).prepare(terms)


def test_columns_come_in_the_order_of_the_terms(shop: Shop) -> None:
    terms = shop.terms(columns=Columns(("height", "width", "depth"), "kind", "array"))
    array = np.asarray(samples().inputs)
    columns = {"depth": array[:, 2], "height": array[:, 0], "width": array[:, 1], "spare": array[:, 0]}
    mine = WorkloadTask(columns, samples().targets, folders=[shop.folder])
    mine.prepare(terms)
    assert (mine.samples.inputs == array).all()
    del columns["width"]
    with pytest.raises(TaskError, match="the inputs lack width; the task reads height, width, depth"):
        WorkloadTask(columns, samples().targets, folders=[shop.folder]).prepare(terms)
    with pytest.raises(
        TaskError, match=r"shape \(60, 2\); expected \(n, 3\), the columns being height, width"
    ):
        WorkloadTask(array[:, :2], samples().targets, folders=[shop.folder]).prepare(terms)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (np.where(x > 3, np.nan, x), y), "values that are NaN or infinite"),
        (lambda x, y: (x, y + 0.5), "a target that is measured is no label"),
        (lambda x, y: (x, y + 1), "labels run from 1 to 3; expected 0 to 2"),
        (
            lambda x, y: (x[:, :2], y),
            r"one step of training was tried before the claim and failed with .*; it was given inputs float32 of shape "
            r"\(\d+, 2\), targets int64 of shape",
        ),
        (lambda x, y: (x[:0], y[:0]), "there are no samples"),
        (
            lambda x, y: (x[:1], y[:1]),
            "tried before the claim and failed: training on 1 sample; expected at least 2$",
        ),
        (lambda x, y: (x[:5], y), "expected arrays of one length"),
        (lambda x, y: (x, None), "inputs are given without targets"),
        (lambda x, y: (Samples(x, y), y), "beside samples that have their own"),
    ],
)
def test_data_that_do_not_fit(shop: Shop, change: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        WorkloadTask(*change(samples().inputs, samples().targets), folders=[shop.folder]).prepare(
            shop.terms()
        )


def test_a_training_that_moves_nothing(shop: Shop) -> None:
    terms = shop.terms()
    terms = replace(terms, recipe=replace(terms.recipe, learning_rate=Decimal("1e-30")))
    mine = task(shop)
    mine.prepare(terms)
    with pytest.raises(TrainingError, match="moved no parameter"):
        mine.train(shop.source("perceptron").load().build(0), TrainingRound(terms, "ada", 1))


def test_where_the_model_is_evidence_as_many_samples_as_the_recipe_asks_for_are_trained_on(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """More would move a model further than shadow models, and *trained* would refuse it."""
    terms = shop.terms(rule=Rule("verified"))
    skewed = samples(120).select(np.flatnonzero((samples(120).targets != 2) | (np.arange(120) < 60)))
    mine = task(shop, skewed, seed=4)  # 40, 40, 20
    mine.prepare(terms)
    for _ in range(2):
        assert mine.counts() == (12, 12, 6)
    assert count(mine.data(1), terms) == mine.counts()
    assert (mine.data(1).inputs == mine.data(2).inputs).all()
    assert mine.training_samples()[1].tolist() == mine.data(1).targets.tolist()
    start = shop.source("perceptron").load().build(0)
    assert mine.train(start, TrainingRound(terms, "ada", 1, None, lambda done, figures: None)).samples == 30
    assert sum("Of 100 samples 30 are trained on" in line for line in caplog.messages) == 1
    few = task(shop, samples(21))
    few.prepare(terms)
    assert few.counts() == (7, 7, 7)
    other = task(shop, skewed)
    other.prepare(shop.terms())
    assert other.counts() == (40, 40, 20)


def test_a_program_of_ones_own_hears_that_its_data_have_another_number_of_samples(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    terms = shop.terms(rule=Rule("verified"))
    for held, words in (
        (60, "may be refused; train on 30"),
        (33, ""),
        (27, ""),
        (24, "paid at most 83% of"),
        (21, "paid at most 56% of"),
    ):
        counts = (held - 20, 10, 10)
        sentence = other_size(terms, counts)
        assert words in sentence
        assert bool(words) == bool(sentence)
        assert other_size(replace(terms, rule=Rule("paper")), counts) == ""
    assert "which takes 50 of the coordinator's shadow models" in other_size(terms, (1, 10, 10))
    dear = replace(terms, rule=replace(terms.rule, fee=terms.Q))
    assert "so few are paid nothing." in other_size(dear, (4, 10, 10))
    trainer = LocalTrainer(task(shop, samples(21)))
    trainer.prepare(terms)
    for _ in range(2):
        assert trainer.counts() == (7, 7, 7)
    assert caplog.messages.count(other_size(terms, (7, 7, 7))) == 1


def test_effort_brings_skewed_data_toward_the_reference(shop: Shop) -> None:
    terms = shop.terms(classes=CLASSES)
    mine = SkewedTask(samples(), majority="bee", degree="0.4", folders=[shop.folder])
    mine.prepare(terms)
    assert mine.counts() == (3, 22, 5)
    mine.collect(1.0)
    assert max(mine.counts()) < 18
    assert count(mine.data(1), terms) == mine.counts()
    with pytest.raises(TaskError, match="there is no stratum 'dog'; expected one of ant, bee, cat"):
        SkewedTask(samples(), majority="dog", degree="0.4", folders=[shop.folder]).prepare(terms)
    none = samples().select(np.flatnonzero(samples().targets != 2))
    with pytest.raises(TaskError, match="no sample of cat"):
        SkewedTask(none, majority="ant", degree="0.4", folders=[shop.folder]).prepare(terms)


def test_a_helper_for_each_kind_of_strata(shop: Shop) -> None:
    assert count_labels([0, 2, 2], 3) == (1, 0, 2)
    assert count_labels(["ant", "cat"], CLASSES) == (1, 0, 1)
    assert count_quantiles([0.1, 0.5, 7], [0.5, 1.5]) == (1, 1, 1)
    assert count_column(["b", "a", "b"], ["b", "a"]) == (2, 1)
    assert count_column(np.array([3, 1, 3]), ["1", "3"]) == (1, 2)


def test_what_belongs_to_no_stratum(shop: Shop) -> None:
    for wrong, words in (
        (lambda: count_labels(["dog"], CLASSES), "expected one of the classes"),
        (lambda: count_quantiles([np.nan], [0.5]), "one finite number a sample"),
        (lambda: count_column(["c"], ["b", "a"]), "which are no strata; expected b, a"),
    ):
        with pytest.raises(TaskError, match=words):
            wrong()


def test_strata_by_a_column_beside_the_inputs(shop: Shop) -> None:
    sites = np.array(["north", "south"] * 30)
    terms = shop.terms(strata=Column("site", ("south", "north")), reference=(Fraction(1, 2),) * 2)
    mine = task(shop, Samples(samples().inputs, samples().targets, {"site": sites}))
    mine.prepare(terms)
    assert mine.counts() == (30, 30)
    assert isinstance(shop.terms().strata, Labels)
    with pytest.raises(TaskError, match="no column 'site'"):
        task(shop).prepare(terms)


def test_an_auditor_counts_strata_by_the_column_that_the_claim_commits_to(shop: Shop, tmp_path: Path) -> None:
    terms = shop.terms(
        strata=Column("site", ("south", "north")),
        reference=(Fraction(1, 2),) * 2,
        columns=Columns(("a", "b", "c"), "kind", "array"),
        classes=CLASSES,
    )
    order: Any = SimpleNamespace(terms=terms, opening=SimpleNamespace(effort=Decimal(0)))
    array = np.asarray(samples().inputs)
    kind = np.array([CLASSES[label] for label in samples().targets.tolist()])
    roots = []
    for name, south in (("claimed", 20), ("altered", 30)):
        sites = np.array(["south"] * south + ["north"] * (60 - south))
        columns = {"a": array[:, 0], "b": array[:, 1], "c": array[:, 2], "kind": kind, "site": sites}
        path = write_table(tmp_path / f"{name}.npz", columns)
        opened = _opened(order, path, None, (str(shop.folder),), "00" * 32)
        assert tuple(opened.counts) == (south, 60 - south)
        mine = WorkloadTask(path, folders=[shop.folder])
        mine.prepare(terms)
        assert LocalTrainer(mine).samples_root(bytes(32)) == opened.root
        roots.append(opened.root)
    assert roots[0] != roots[1], "another column is another claim"


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz"])
def test_samples_of_a_file_by_the_columns_of_the_terms(shop: Shop, tmp_path: Path, kind: str) -> None:
    terms = shop.terms(columns=Columns(("b", "a", "c"), "kind", "array"), classes=CLASSES)
    array, named = np.asarray(samples().inputs), [CLASSES[label] for label in samples().targets.tolist()]
    columns = {"a": array[:, 1], "b": array[:, 0], "c": array[:, 2], "kind": np.array(named)}
    path = write_table(tmp_path / f"mine{kind}", columns)
    mine = WorkloadTask(path, folders=[shop.folder])
    mine.prepare(terms)
    assert mine.counts() == (20, 20, 20)
    assert np.allclose(mine.samples.inputs, array, atol=1e-6)
    del columns["c"]
    write_table(path, columns)
    with pytest.raises(TaskError, match=r"has no c; it has a, b, kind"):
        WorkloadTask(str(path), folders=[shop.folder]).prepare(terms)
    with pytest.raises(TaskError, match=r"gone.csv cannot be read"):
        WorkloadTask("gone.csv", folders=[shop.folder]).prepare(terms)


@pytest.mark.parametrize("kind", [".csv", ".parquet", ".npz"])
def test_a_file_is_read_by_the_types_of_the_learners_data(shop: Shop, tmp_path: Path, kind: str) -> None:
    terms = shop.terms(
        columns=Columns(("code", "hour", "miles"), "kind", "named"),
        arrays=(
            ArrayForm("inputs.code", "text", ()),
            ArrayForm("inputs.hour", "int64", ()),
            ArrayForm("inputs.miles", "float32", ()),
            ArrayForm("targets", "int64", ()),
        ),
        classes=CLASSES,
    )
    # Names of which all look like numbers here, numbers of which all are whole.
    own = {
        "miles": np.array([3, 4, 5]),
        "code": np.array(["10", "20", "10"] if kind == ".csv" else [10, 20, 10]),
        "hour": np.array([1.0, 2.0, 3.0]),
        "kind": np.array(CLASSES),
    }
    path = write_table(tmp_path / f"mine{kind}", own)
    found = fitted(read(path, terms), terms, 3).arrays
    assert found["code"].tolist() == ["10", "20", "10"]
    assert found["hour"].dtype == np.int64
    assert found["miles"].dtype == np.float32
    own["hour"] = np.array([1.5, 2, 3])
    path = write_table(path, own)
    with pytest.raises(DataError, match=r"inputs.hour have 1.5 in row 0; expected whole numbers \(int64\)"):
        fitted(read(path, terms), terms, 3)


class Frame:
    """A table as pandas has one: columns by name, of Python's objects."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns = {name: np.array(values, dtype=object) for name, values in columns.items()}

    def keys(self) -> Any:
        return self.columns.keys()

    def items(self) -> Any:
        return self.columns.items()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def test_arrays_of_a_program_are_what_a_file_of_them_is(shop: Shop) -> None:
    terms = shop.terms(
        columns=Columns(("code", "hour"), "kind", "named"),
        arrays=(
            ArrayForm("inputs.code", "text", ()),
            ArrayForm("inputs.hour", "int64", ()),
            ArrayForm("targets", "int64", ()),
        ),
        classes=CLASSES,
    )

    def held(inputs: Any, targets: Any = CLASSES) -> Samples:
        return fitted(WorkloadTask(inputs, targets).samples, terms, 3)

    own: dict[str, list[Any]] = {"hour": [1, 2, 3], "code": ["x", 7, 8.0], "note": [None, [1], "x"]}
    for inputs in (own, Frame(**own)):
        for targets in (CLASSES, np.array(CLASSES), np.array(CLASSES, dtype=object), [0, 1, 2]):
            found = held(inputs, targets)
            assert list(found.arrays) == ["code", "hour"]
            assert found.arrays["code"].tolist() == ["x", "7", "8"]
            assert found.arrays["hour"].tolist() == [1, 2, 3]
            assert found.targets.tolist() == [0, 1, 2]
            assert fitted(found, terms, 3).targets.tolist() == [0, 1, 2]
    for missing in ("code", "hour"):
        gap = {**own, missing: [own[missing][0], float("nan"), own[missing][2]]}
        for inputs in (gap, Frame(**gap)):
            with pytest.raises(
                DataError, match=f"the input {missing} has no value in row 1; expected a value"
            ):
                held(inputs)
    with pytest.raises(DataError, match="the array of targets has masked values"):
        held(own, np.ma.masked_array([0, 1, 2], [False, True, False]))


def test_samples_of_other_libraries_are_read_as_arrays(shop: Shop) -> None:
    import torch

    terms = shop.terms(arrays=(ArrayForm("inputs", "float32", (3,)), ArrayForm("targets", "int64", ())))
    inputs: Any = torch.from_numpy(samples().inputs)
    targets: Any = torch.from_numpy(samples().targets)
    for mine in (
        task(shop, Samples(inputs, targets)),
        WorkloadTask(list(inputs.bfloat16()), list(targets), folders=[shop.folder]),
    ):
        mine.prepare(terms)
        assert mine.counts() == (20, 20, 20)
        assert mine.samples.inputs.dtype == np.float32
    odd: Any
    for odd in (5, None, (row for row in range(3)), [[1], [1, 2], [3]]):
        with pytest.raises(
            TaskError, match=r"expected an array, with a row a sample|rows of different lengths"
        ):
            WorkloadTask(odd, [0, 1, 2], folders=[shop.folder]).prepare(terms)


def test_images_are_of_the_shape_of_the_learners(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    terms = terms_for(
        initial_weights("cifar10-cnn", 0), Recipe("cifar10-cnn", 1, 10, "adam", Decimal("0.01"), 30)
    )
    names = tuple("abcdefghij")
    arrays = ArrayForm("inputs", "float32", (3, 32, 32)), ArrayForm("targets", "int64", ())
    terms = replace(terms, rule=Rule("paper"), classes=names, arrays=arrays)

    def task(mode: str, size: int) -> WorkloadTask:
        for place, name in enumerate(names):
            (tmp_path / name).mkdir(exist_ok=True)
            colour = 10 * place + 5
            image.new(mode, (size, size), (colour, 0, 0) if mode == "RGB" else colour).save(
                tmp_path / name / "1.png"
            )
        return WorkloadTask(tmp_path)

    grey = task("L", 32)
    grey.prepare(terms)
    assert grey.samples.inputs.shape == (10, 3, 32, 32), "grey ones have three equal channels"
    with pytest.raises(
        TaskError, match=r"are 3 x 28 x 28; expected 3 x 32 x 32 \(channels x height x width\)"
    ):
        task("RGB", 28).prepare(terms)


def write_table(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **columns)
        return path
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    (csv.write_csv if path.suffix == ".csv" else parquet.write_table)(pyarrow.table(columns), path)
    return path


def test_images_of_a_file_or_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start = initial_weights("digits-cnn", 0)
    terms = terms_for(start, Recipe("digits-cnn", 1, 10, "adam", Decimal("0.01"), 30))
    terms = replace(terms, rule=Rule("paper"))
    np.savez(tmp_path / "mine.npz", images=np.zeros((20, 1, 8, 8), np.float32), labels=np.arange(20) % 10)
    mine = WorkloadTask(tmp_path / "mine.npz")
    mine.prepare(terms)
    assert mine.counts() == (2,) * 10
    with pytest.raises(TaskError, match="no class names to know its sub-folders by"):
        WorkloadTask(tmp_path).prepare(terms)
    with pytest.raises(TaskError, match="the task names no columns of a table"):
        WorkloadTask(tmp_path / "mine.csv").prepare(terms)
    image = pytest.importorskip("PIL.Image")
    names = tuple("abcdefghij")
    for name in names:
        (tmp_path / name).mkdir()
        image.new("L", (8, 8), 100).save(tmp_path / name / "1.png")
    mine = WorkloadTask(tmp_path)
    mine.prepare(replace(terms, classes=names))
    assert mine.counts() == (1,) * 10
    assert not caplog.messages
    table = replace(terms, classes=names, columns=Columns(("width", "height"), "kind", "array"))
    with pytest.raises(
        TaskError, match="is a folder, and the task reads a table; expected a file with width, hei"
    ):
        WorkloadTask(tmp_path).prepare(table)
    (tmp_path / "a" / "2.heic").write_bytes(b"")
    WorkloadTask(tmp_path).prepare(replace(terms, classes=names))
    assert "1 file that is left out (1 .heic; the first is a/2.heic)" in caplog.text


def test_wishes_are_followed_as_far_as_the_terms_allow_and_a_sentence_says_what_is_not(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    narrow = shop.terms()
    wide = replace(
        narrow, recipe=replace(narrow.recipe, allowed=Allowed(epochs=1, learning_rate=Decimal("0.5")))
    )
    wishes = {"epochs": 5, "learning_rate": 0.12}
    start, workload = shop.source("perceptron").load().build(0), shop.source("perceptron").load()
    for terms, expected, said in (
        (narrow, narrow.recipe, ["epochs 5 is not", "learning_rate 0.12 is not"]),
        (wide, replace(wide.recipe, epochs=4, learning_rate=Decimal("0.12")), ["epochs 5 is not"]),
    ):
        caplog.clear()
        mine = task(shop, seed=3, recipe=wishes)
        mine.prepare(terms)
        assert [message[: len(words)] for message, words in zip(caplog.messages, said, strict=True)] == said
        round_ = TrainingRound(terms, "ada", 1)
        made = mine.train(start, round_).weights
        assert len(caplog.messages) == len(said), "said once"
        followed = workload.train(start, samples(), expected, round_.seed(3))
        assert all((made[name] == followed[name]).all() for name in followed)


@pytest.mark.parametrize(
    ("wishes", "words"),
    [({"epoch": 3}, r"recipe\.epoch is 3; expected one of"), ({"epochs": None}, r"recipe\.epochs")],
)
def test_a_wish_for_nothing_is_refused(shop: Shop, wishes: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        task(shop, recipe=wishes).prepare(shop.terms())


def test_a_recipe_that_the_workload_does_not_look_at_is_refused(shop: Shop) -> None:
    terms = shop.terms("linear")
    with pytest.raises(TaskError, match=r"has weight_decay, which the workload"):
        task(shop).prepare(replace(terms, recipe=replace(terms.recipe, weight_decay=Decimal("0.1"))))
