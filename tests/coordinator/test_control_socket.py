"""A notification is answered when the service has looked, and by nobody where it is silent or not there."""

import asyncio
import socket
from pathlib import Path

import pytest

import coordinator.control_socket
from coordinator.control_socket import ControlSocket, RoundProgress, check_place, notify, progress
from coordinator.errors import FolderError


async def test_a_notification_is_answered_when_the_service_has_looked_and_only_then(tmp_path: Path) -> None:
    path, looked = tmp_path / "control.sock", []

    async def look() -> None:
        looked.append(True)
        if len(looked) == 2:
            raise OSError("the database is gone")

    told = {"one": RoundProgress(1, {"p1": 500_000}, 20, 145, 60.0)}
    control_socket = ControlSocket(path, look, lambda: {"task one": "the disk is full"}, lambda: told)
    assert notify(path) is None
    await control_socket.start()
    assert path.stat().st_mode & 0o777 == 0o600
    assert await asyncio.to_thread(notify, path) == {"task one": "the disk is full"}
    assert await asyncio.to_thread(notify, path) is None  # it could not look
    assert await asyncio.to_thread(notify, path) == {"task one": "the disk is full"}
    assert await asyncio.to_thread(progress, path) == told  # without a look
    await control_socket.stop()
    assert notify(path) is None
    assert progress(path) == {}
    assert len(looked) == 3


async def test_who_stops_later_takes_no_other_process_its_socket(tmp_path: Path) -> None:
    async def look() -> None:
        pass

    path = tmp_path / "control.sock"
    led, leads = (ControlSocket(path, look, dict, dict) for _ in range(2))
    await led.start()
    await leads.start()
    await led.stop()
    assert await asyncio.to_thread(notify, path) == {}
    await leads.stop()
    assert not path.exists()


async def test_a_place_without_sockets_is_refused(tmp_path: Path) -> None:
    check_place(tmp_path / "control.sock")
    assert not list(tmp_path.iterdir())
    path = tmp_path / "unmounted" / "control.sock"
    expected = (
        f"{path} cannot be made: No such file or directory; the state folder is expected to be writable"
    )
    with pytest.raises(FolderError, match=expected):
        check_place(path)
    with pytest.raises(FolderError, match=expected):
        await ControlSocket(path, asyncio.Event().wait, dict, dict).start()  # type: ignore[arg-type]


def test_a_socket_that_nobody_serves_and_one_that_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator.control_socket, "ANSWER_SECONDS", 0.2)
    path = tmp_path / "control.sock"
    path.write_text("no socket")
    assert notify(path) is None
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
        assert notify(path) is None  # as a killed service leaves it
        left.listen()
        assert notify(path) is None
