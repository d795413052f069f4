"""A task is opened in the browser as on the command line: proved, billed, confirmed."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpeer.console.sessions import Role
from fedpeer.protocol.model_file import encode_model
from fedpeer.testing.coordinator import LocalCoordinator
from tests.fedpeer.console.visiting import Visit, Visited, eventually, visited
from tests.integration.market import WEIGHTS

TASK = """
id = "task"
Q = 1000
phi = 300
upsilon = 200
reference = ["1/4", "1/4", "1/4", "1/4"]
initial_model = "initial.safetensors"
[rule]
name = "paper"
[schedule]
rounds = 2
quorum = 3
capacity = 4
[recipe]
model = "custom"
samples = 100
"""


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCoordinator]:
    with LocalCoordinator(tmp_path_factory.mktemp("opening") / "market") as served:
        yield served


@pytest.fixture(scope="module")
def console(coordinator: LocalCoordinator) -> Iterator[Visited]:
    with visited(coordinator.folder, coordinator.clock) as served:
        yield served


def proved(visit: Visit, text: str) -> dict[str, Any]:
    """What the page says of a task file when its dry round has ended."""
    assert visit.post("/operator/open/", of="/operator/open/", text=text).status == 303
    page: dict[str, Any] = {}

    def ended() -> bool:
        page.update(json.loads(visit.get("/operator/open.json").text))
        return not page["running"]

    eventually(ended, 120)
    return page


def test_a_task_is_proved_billed_and_opened(console: Visited, coordinator: LocalCoordinator) -> None:
    visit = console.signed_in(Role.OPERATOR)
    (coordinator.folder.path / "initial.safetensors").write_bytes(encode_model(WEIGHTS))
    page = proved(visit, TASK)
    assert page["error"] == ""
    offer = page["offer"]
    assert offer["bill_micro"] == 2 * 4 * offer["head_micro"] == offer["budget_micro"]
    assert coordinator.entries("terms") == []  # nothing is published before it is confirmed
    shown = visit.get("/operator/open/").main
    assert f'value="{offer["bill_micro"]}"' in shown
    assert offer["findings"][0] in shown

    wrong = visit.post("/operator/open/", of="/operator/open/", digest="00" * 32)
    assert wrong.status == 409
    answer = visit.post("/operator/open/", of="/operator/open/", digest=offer["terms_digest"])
    assert answer.headers["location"] == "/operator/tasks/task/?notice=confirmed"
    [body] = coordinator.entries("terms")
    assert body["terms"]["budget_micro"] == offer["budget_micro"]
    assert coordinator.until("task", "EFFORT") == "EFFORT"
    twice = visit.post("/operator/open/", of="/operator/participants/", digest=offer["terms_digest"])
    assert twice.status == 409


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TASK, "there is a task 'task' already"),
        (TASK.replace('"task"', '"other"').replace("Q = 1000", "Q = -1"), "Q"),
        (
            TASK.replace('"task"', '"other"').replace("initial.safetensors", "none.safetensors"),
            "none.safetensors",
        ),
        ('id = "<script>alert(1)</script>', "the task cannot be used"),
        ("", "missing"),
        (TASK.replace('"task"', '"other"').replace('"custom"', '"os:system"'), "recipe.model is 'os:system'"),
        (
            TASK.replace('"task"', '"other"').replace(
                "[recipe]", '[strata]\nfactory = "os:system"\n[recipe]'
            ),
            "strata.factory is 'os:system'",
        ),
    ],
    ids=["known", "value", "file", "toml", "empty", "model", "strata"],
)
def test_what_is_wrong_with_a_task_file_is_said_beside_it(
    console: Visited, coordinator: LocalCoordinator, text: str, said: str
) -> None:
    (coordinator.folder.path / "initial.safetensors").write_bytes(encode_model(WEIGHTS))
    if text == TASK and coordinator.entries("terms") == []:
        offer = proved(console.signed_in(Role.OPERATOR), TASK)["offer"]
        console.signed_in(Role.OPERATOR).post(
            "/operator/open/", of="/operator/open/", digest=offer["terms_digest"]
        )
    visit = console.signed_in(Role.OPERATOR)
    page = proved(visit, text)
    assert page["offer"] is None
    assert said in page["error"]
    shown = visit.get("/operator/open/").main
    assert "<script>" not in shown
    kept = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", shown, re.DOTALL)
    assert kept is not None  # what was typed is not lost
    assert html.unescape(kept[1]).strip() == text.strip()


def test_the_folder_of_relative_paths_is_the_coordinators(console: Visited, tmp_path: Path) -> None:
    page = proved(
        console.signed_in(Role.OPERATOR), TASK.replace('"task"', '"third"').replace("initial.s", "gone.s")
    )
    assert str(console.folder.path / "gone.safetensors") in page["error"]
