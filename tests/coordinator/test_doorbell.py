"""A ring says whether the service has looked, is silent, or is not there."""

import asyncio
import socket
from pathlib import Path

import pytest

import coordinator.doorbell
from coordinator.doorbell import Answer, Doorbell, ask, ring


async def test_a_ring_is_answered_when_the_service_has_looked_and_only_then(tmp_path: Path) -> None:
    path, looked = tmp_path / "doorbell.sock", []

    async def look() -> None:
        looked.append(True)
        if len(looked) == 2:
            raise OSError("the database is gone")

    doorbell = Doorbell(path, look, lambda: {"task one": "the disk is full"})
    assert ring(path) is Answer.NOBODY
    assert ask(path) is None
    await doorbell.start()
    assert path.stat().st_mode & 0o777 == 0o600
    assert await asyncio.to_thread(ring, path) is Answer.LOOKED
    assert await asyncio.to_thread(ring, path) is Answer.SILENT  # it could not look
    assert await asyncio.to_thread(ring, path) is Answer.LOOKED
    assert await asyncio.to_thread(ask, path) == {"task one": "the disk is full"}
    await doorbell.stop()
    assert ring(path) is Answer.NOBODY
    assert len(looked) == 3


def test_a_door_behind_which_nobody_is_and_one_that_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.doorbell, "ANSWER_SECONDS", 0.2)
    path = tmp_path / "doorbell.sock"
    path.write_text("no socket")
    assert ring(path) is Answer.NOBODY
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
        assert ring(path) is Answer.NOBODY  # as a killed service leaves it
        left.listen()
        assert ring(path) is Answer.SILENT
        assert ask(path) is None
