"""A task whose models lie in an object store, over a line that loses answers, says 503 and resets."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.errors import ConfigError
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.server import Coordinator
from fedpeer.audit.sources import open_source
from tests.integration.market import (
    CONFIG,
    close,
    delivered,
    make_folder,
    model_like,
    open_task,
    running,
    task_config,
    verified,
)
from tests.object_stores import (
    BUCKET,
    SECRET_KEY,
    STORES,
    faulty_store,
    names_in,
    now_and_then,
    object_store,
    write_key,
)

NAMES = ("ann", "bob", "cyd")
RATES = {"503": 0.10, "reset": 0.05, "lost": 0.10}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with object_store(request.param, tmp_path / "store") as url:
        yield url


def logged_models(folder: StateFolder) -> set[str]:
    """Digests of all models that the ledger names: those submitted, those merged."""
    with ExitStack() as resources:
        source = open_source(folder.database_url(folder.config()), resources)
        bodies = [json.loads(entry)["body"] for entry in source.entries()]
    found = {body["model_sha256"] for body in bodies if "model_sha256" in body}
    statements = [body["statement"] for body in bodies if isinstance(body.get("statement"), dict)]
    return found | {each["model_sha256"] for each in statements if "model_sha256" in each}


async def test_a_task_ends_with_every_model_stored_once_across_a_new_machine(
    store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with faulty_store(store, now_and_then(11, RATES)) as line:
        section = f'[s3]\nbucket = "{BUCKET}"\nprefix = "market/a"\nendpoint = "{line.url}"\ncredentials = "s3.key"\n'
        folder = make_folder(tmp_path / "state", CONFIG + section)
        write_key(folder.path)
        open_task(folder, task_config(tmp_path, schedule={"rounds": 2}))
        async with running(folder) as service:
            members = await delivered(service, NAMES)
            await members[0].until("TRAINING", round_=2)
            await close(members)
        shutil.rmtree(folder.models)  # another machine has no copies
        async with running(folder) as service:
            members = [replace(client, address=service.market_address, _channel=None) for client in members]
            await members[0].until("TRAINING", round_=2)
            for number, client in enumerate(members):
                await client.submit(model_like(20 + number), 2)
            await members[0].until("CLOSED")
            await close(members)
        verified(folder)
        operator = Operator(folder)
        learned = operator.model("task")
        assert operator.back_up(tmp_path / "backup.tar").left_out == ()
        operator.close()
        assert sum(line.seen[fault] for fault in RATES) > 0
    assert learned.path.is_file()
    found = [Path(name) for name in names_in(store, folder.path)]
    logged = logged_models(folder)
    assert len(logged) == 2 * len(NAMES) + 2
    assert {name.stem for name in found} >= logged
    assert len({name.stem for name in found}) == len(found), "nothing is stored under two names"
    assert {name.parts[:2] for name in found} == {("market", "a")}
    said = capfd.readouterr()
    assert SECRET_KEY not in caplog.text + said.out + said.err


async def test_a_second_market_in_the_same_place_is_refused_before_it_stores_or_deletes(
    store: str, tmp_path: Path
) -> None:
    section = f'[s3]\nbucket = "{BUCKET}"\nendpoint = "{store}"\ncredentials = "s3.key"\n'
    first, second = (make_folder(tmp_path / name, CONFIG + section) for name in ("first", "second"))
    for folder in (first, second):
        write_key(folder.path)
    open_task(first, task_config(tmp_path, schedule={"rounds": 1}))
    stored = names_in(store, first.path)
    with pytest.raises(ConfigError, match="has the model files of another market"):
        open_task(second, task_config(tmp_path))
    service = Coordinator(second)
    with pytest.raises(ConfigError, match="has the model files of another market"):
        await service.start()
    assert names_in(store, first.path) == stored
    # Its own, after its log has another key, or on a machine without copies.
    with closing(Operator(first)) as operator:
        operator.change_log_key()
    shutil.rmtree(first.models)
    async with running(first) as service:
        members = await delivered(service, NAMES)
        await members[0].until("CLOSED")
        await close(members)
    verified(first)
