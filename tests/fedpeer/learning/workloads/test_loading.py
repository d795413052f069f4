"""Workloads by name."""

import multiprocessing
import os
import py_compile
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedpeer.learning.errors import WorkloadError
from fedpeer.learning.workloads.loading import IsolatedWorkload, WorkloadSource, apart, difference
from tests.fedpeer.learning.workloads.test_contract import RECIPE, measured

MODULE = """
import multiprocessing
import os
from fedpeer.learning.workloads.baseline import MeanWorkload
from {helper} import WIDTH

sources = ["{helper}.py"]


def mean(width=WIDTH):
    return MeanWorkload(width=width)


def broken():
    raise RuntimeError("no such file")


class Dying(MeanWorkload):
    def judge(self, weights, samples):
        os._exit(7)


class Odd(MeanWorkload):
    trainable = ("mean",)

    def build(self, seed):
        return [1.0]

    def train(self, weights, samples, recipe, seed):
        return {{"mean": weights["mean"][:0]}}

    def judge(self, weights, samples):
        return [0.0] * len(samples)


class Lacking(MeanWorkload):
    trainable = ("median",)

    def train(self, weights, samples, recipe, seed):
        return None


class Leaving(MeanWorkload):
    def judge(self, weights, samples):
        raise SystemExit


def leaving():
    raise SystemExit(3)


def noisy():
    print("noise")
    return MeanWorkload()


class Failing(MeanWorkload):
    def judge(self, weights, samples):
        return 1 / 0


nothing = dict
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With the module shop_NAME.models, NAME being of this test alone."""
    package = tmp_path / f"shop_{tmp_path.name.replace('-', '_')}"
    package.mkdir()
    helper = f"layers_{tmp_path.name.replace('-', '_')}"
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(MODULE.format(helper=helper))
    (package / f"{helper}.py").write_text("WIDTH = 1\n")
    return package


def source(folder: Path, name: str, **options: object) -> WorkloadSource:
    return WorkloadSource(f"{folder.name}.models:{name}", options, (str(folder.parent), str(folder)))


def test_a_factory_is_called_with_the_options(folder: Path) -> None:
    assert source(folder, "mean").load().build(0)["mean"].shape == (1,)
    assert source(folder, "mean", width=3).load().build(0)["mean"].shape == (3,)


def test_two_sources_may_have_modules_of_one_name(tmp_path: Path) -> None:
    """And a file that was changed is loaded anew, while what was loaded stays what it was."""
    text = "from fedpeer.learning.workloads.baseline import MeanWorkload\n" + (
        "class Own(MeanWorkload):\n"
        "    def width(self):\n        import twin_layers\n        return twin_layers.WIDTH\n"
        "def make(): return Own()\n"
    )
    sources = []
    for width in (1, 2):
        (folder := tmp_path / str(width)).mkdir()
        (folder / "twin_models.py").write_text(text)
        (folder / "twin_layers.py").write_text(f"WIDTH = {width}\n")
        sources.append(WorkloadSource("twin_models:make", folders=(str(folder),)))
    for _ in range(2):
        assert [source.load().width() for source in sources] == [1, 2]  # type: ignore[attr-defined]
    assert sources[0].load() is sources[0].load()
    (tmp_path / "1" / "twin_models.py").write_text(text.replace("twin_layers.WIDTH", "9"))
    assert sources[0].load().width() == 9  # type: ignore[attr-defined]


def test_a_source_runs_what_its_digest_is_of_whatever_byte_code_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "parts").mkdir()
    files = tmp_path / "byte_models.py", tmp_path / "parts" / "byte_width.py"
    source = WorkloadSource("byte_models:mean", folders=(str(tmp_path),))
    widths = []
    for number in (1, 2):
        files[0].write_text(
            "from parts.byte_width import WIDTH\n"
            "from fedpeer.learning.workloads.baseline import MeanWorkload\n"
            f"def mean():\n    return MeanWorkload(width=10 * WIDTH + {number})\n"
        )
        files[1].write_text(f"WIDTH = {number}\n")
        for file in files:
            os.utime(file, (1_000_000_000, 1_000_000_000))  # one second, and one length
        widths.append(len(source.load().build(0)["mean"]))
        if number == 1:
            assert not list(tmp_path.rglob("*.pyc"))
            for file in files:
                py_compile.compile(str(file))
    assert widths == [11, 22]


def test_a_source_holds_its_files_to_the_terms(folder: Path) -> None:
    here = source(folder, "mean")
    agreed = replace(here, expected=here.files())
    assert agreed.load() is here.load()
    (folder / "models.py").write_text("x = 1\n")
    with pytest.raises(WorkloadError, match=r"is not the task's: models.py is another"):
        agreed.load()


def test_a_workload_of_its_own_process_is_itself_in_another(folder: Path) -> None:
    there = IsolatedWorkload(source(folder, "mean"))
    try:
        assert apart("models:mean", _kind, there) == "MeanWorkload"
    finally:
        there.close()


def _kind(workload: object) -> str:
    return type(workload).__name__


def test_an_architecture_is_a_source_like_any_other() -> None:
    assert WorkloadSource.of_architecture("digits-cnn").load().classes == 10


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("models.mean", "expected package.module:factory"),
        ("no_such_place.models:mean", "no module no_such_place.models"),
    ],
)
def test_what_is_no_factory_is_refused(factory: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        WorkloadSource(factory).load()


def test_a_factory_that_fails_or_gives_no_workload_is_refused(folder: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no such file \(models.py, line"):
        source(folder, "broken").load()
    with pytest.raises(WorkloadError, match=r"leaving .*failed: SystemExit: 3"):
        source(folder, "leaving").load()
    with pytest.raises(WorkloadError, match="lacks classes, trainable, build, train, judge"):
        source(folder, "nothing").load()
    with pytest.raises(
        WorkloadError, match=r"options \{'wide': 3\} and nothing else, which does not go: .*'wide'"
    ):
        source(folder, "mean", wide=3).load()
    with pytest.raises(WorkloadError, match="the process that ran models:mean died"):
        apart("models:mean", os._exit, 3)


def test_the_digest_is_over_the_factory_s_file_and_its_sources_and_options(folder: Path) -> None:
    plain = source(folder, "mean")
    (helper,) = (path.name for path in folder.glob("layers_*.py"))
    assert set(plain.files()) == {"models.py", helper}
    before, files = plain.digest(), plain.files()
    assert source(folder, "mean", width=2).digest() != before
    (folder / helper).write_text("WIDTH = 2\n")
    assert plain.digest() != before
    assert difference(plain.files(), files) == f"{helper} is another"
    assert difference({}, {"a.py": "x"}) == "a.py is missing here"


def test_the_digest_runs_nothing(folder: Path) -> None:
    (folder / "__init__.py").write_text("raise SystemExit('it was run')\n")
    (folder / "models.py").write_text("raise SystemExit('it was run')\nsources = []\n")
    assert list(source(folder, "mean").files()) == ["models.py"]


@pytest.mark.parametrize("declared", ['["absent.py"]', '["../other.py"]', "[1]", "names()", '"layers.py"'])
def test_sources_that_cannot_be_read_are_refused(folder: Path, declared: str) -> None:
    (folder / "models.py").write_text(f"sources = {declared}\n")
    with pytest.raises(WorkloadError, match="source"):
        source(folder, "mean").files()


def test_sources_may_be_annotated(folder: Path) -> None:
    (folder / "models.py").write_text('sources: list[str] = ["absent.py"]\n')
    with pytest.raises(WorkloadError, match=r"absent\.py"):
        source(folder, "mean").files()


def test_what_a_workload_prints_is_no_part_of_the_output(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its process begins anew, as an installed fedpeer's does, with this test's standard error.
    monkeypatch.setattr("fedpeer.learning.workers._CONTEXT", multiprocessing.get_context("spawn"))
    there = IsolatedWorkload(source(folder, "noisy"))
    there.close()
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "noise\n")


def test_a_workload_of_its_own_process_says_the_same(folder: Path) -> None:
    here = source(folder, "mean")
    there = IsolatedWorkload(here)
    try:
        samples = measured()
        trained = there.train(there.build(0), samples, RECIPE, 1)
        own = here.load().train(here.load().build(0), samples, RECIPE, 1)
        assert np.array_equal(trained["mean"], own["mean"])
        assert there.trainable == ("mean",)
        assert np.array_equal(there.judge(trained, samples).losses, here.load().judge(own, samples).losses)
    finally:
        there.close()


def test_a_workload_that_kills_its_process_costs_a_call(folder: Path) -> None:
    there = IsolatedWorkload(source(folder, "Dying"))
    try:
        with pytest.raises(WorkloadError, match="died in judge"):
            there.judge(there.build(0), measured())
        assert there.build(0)["mean"].shape == (1,)
    finally:
        there.close()


def test_a_workload_that_gives_something_else_is_refused_in_a_sentence(folder: Path) -> None:
    start = source(folder, "mean").load().build(0)
    odd, lacking = (IsolatedWorkload(source(folder, name)) for name in ("Odd", "Lacking"))
    try:
        with pytest.raises(WorkloadError, match="in build gives a list; expected a mapping"):
            odd.build(0)
        with pytest.raises(
            WorkloadError, match="in train gives another model than it was given: tensor mean"
        ):
            odd.train(start, measured(), RECIPE, 0)
        with pytest.raises(WorkloadError, match="in judge gives a list; expected a Judged"):
            odd.judge(start, measured())
        with pytest.raises(WorkloadError, match="without median, which its trainable names"):
            lacking.build(0)
        with pytest.raises(WorkloadError, match="in train gives a NoneType"):
            lacking.train(start, measured(), RECIPE, 0)
    finally:
        odd.close()
        lacking.close()


@pytest.mark.parametrize(("name", "said"), [("Failing", "ZeroDivisionError"), ("Leaving", "SystemExit")])
def test_a_workload_that_fails_says_where(folder: Path, name: str, said: str) -> None:
    there = IsolatedWorkload(source(folder, name))
    try:
        with pytest.raises(WorkloadError, match=rf"in judge failed: {said}.*models.py, line"):
            there.judge(there.build(0), measured())
    finally:
        there.close()


class Elsewhere(MetaPathFinder):
    """As an editable install has it: a package that is on no path."""

    def __init__(self, name: str, package: Path) -> None:
        self.name, self.package = name, package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return spec_from_file_location(
            fullname, self.package / "__init__.py", submodule_search_locations=[str(self.package)]
        )


def test_a_package_that_a_finder_knows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package := tmp_path / "deep" / "source").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('not to be run')\n")
    (package / "models.py").write_text('sources = ["layers.py"]\n')
    (package / "layers.py").write_text("")
    source = WorkloadSource("installed_elsewhere.models:make")
    with pytest.raises(
        WorkloadError, match=r"there is no module installed_elsewhere\.models in Python's path"
    ):
        source.files()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Elsewhere("installed_elsewhere", package)])
    assert source.files().keys() == {"models.py", "layers.py"}
