"""participant.toml: what is read, and what is refused with which words."""

from pathlib import Path

import pytest

from mechanism.risk import CARA, CRRA
from participant.config import TEMPLATE, read_config
from participant.effort import BestResponse, Fixed
from participant.errors import ConfigurationError

FILE = TEMPLATE.format(id="ada", market="localhost:7443", public="localhost:7444")


def write(folder: Path, text: str) -> Path:
    path = folder / "participant.toml"
    path.write_text(text)
    return path


def test_the_template_can_be_read_and_its_paths_are_resolved(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, FILE))
    assert config.state == tmp_path / "state"
    assert config.coordinator.authority == tmp_path / "authority.pem"
    assert config.task[0].id is None
    assert isinstance(config.task[0].effort.build(), BestResponse)


def test_a_fixed_effort(tmp_path: Path) -> None:
    text = FILE.replace('strategy = "best-response"', 'strategy = "fixed"\neffort = 0.25')
    assert read_config(write(tmp_path, text)).task[0].effort.build() == Fixed(0.25)


def test_an_attitude_to_risk(tmp_path: Path) -> None:
    for line, attitude in (
        ("cara = 0.5", CARA(0.5)),
        ("crra = 2.0\nwealth = 9.0", CRRA(2.0, 9.0)),
        ("", None),
    ):
        text = FILE.replace('strategy = "best-response"', f'strategy = "best-response"\n{line}')
        strategy = read_config(write(tmp_path, text)).task[0].effort.build()
        assert isinstance(strategy, BestResponse)
        assert strategy.attitude == attitude


def test_data_in_place_of_a_factory(tmp_path: Path) -> None:
    text = FILE.replace('factory = "my_task:MyTask"', 'data = "mine.parquet"').partition("[task.effort]")[0]
    [task] = read_config(write(tmp_path, text)).task
    assert task.spec.factory == "participant.adapters.workload:WorkloadTask"
    assert task.spec.options == {"samples": str(tmp_path / "mine.parquet"), "folders": [str(tmp_path)]}
    assert task.strategy == Fixed(0.0), "the data stay as they are"
    text = text.replace("[task.options]", 'folders = ["models"]\n[task.options]\nseed = 3')
    [task] = read_config(write(tmp_path, text)).task
    assert task.spec.options["folders"] == [str(tmp_path / "models")]
    assert task.spec.options["seed"] == 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[service]", "[service]\ncolour = 3", "unknown key service.colour"),
        ('id = "ada"', "", "missing key id"),
        ('id = "ada"', 'id = "Ada"', "id is 'Ada'; expected"),
        ("trainers = 1", "trainers = 0", "service.trainers is 0; expected at least 1"),
        ("rate = 1.0", "curve = [[0, 0.2], [1, 0.4]]", "non-increasing"),
        ("rate = 1.0", "curve = [[0, 0.2], [0.5, 0.1]]", "from 0 to 1"),
        ("cost = 1.0", "cost = -1.0", "effort.cost is -1.0; expected more than 0"),
        ('strategy = "best-response"', 'strategy = "fixed"', "effort is missing"),
        ("cost = 1.0", "cost = 1.0\ncara = -1.0", "cara is -1.0; expected a finite number above 0"),
        ("cost = 1.0", "cost = 1.0\ncrra = 1.0", "crra together with wealth"),
        ("cost = 1.0", "cost = 1.0\ncrra = 1.0\nwealth = 2.0\ncara = 1.0", "not both"),
        ("[service]", "[service", "not valid TOML"),
        ("[[task]]", '[[task]]\nfactory = "a:b"\n[[task]]', "two"),
        ("[[task]]", '[[task]]\ndata = "mine.csv"', "exactly one of data and factory is expected"),
        ('factory = "my_task:MyTask"', "", "exactly one of data and factory is expected"),
        ("[[task]]", '[[task]]\nfolders = ["models"]', "folders is expected beside data only"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in FILE
    path = write(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=words) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_no_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fedpeer participant init"):
        read_config(tmp_path / "participant.toml")
