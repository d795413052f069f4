"""The operator's commands in odd cases: nobody can read the result, a file is not a file, a host is left out."""

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.backup import write_backup
from coordinator.command_output import UNCONFIRMED, UNSHOWN
from coordinator.config import split_address
from coordinator.errors import FolderError, ServeError
from coordinator.folder import StateFolder
from coordinator.operator import Operator
from coordinator.storage.rounds import Retention
from fedpeer.audit.sql.database import Database
from fedpeer.audit.sql.errors import DatabaseFull
from fedpeer.learning.datasets import data_folder
from fedpeer.protocol.certificates import certificate_hosts
from fedpeer.protocol.limits import MAX_REFUSAL_SENTENCE
from tests import commands
from tests.integration.market import CONFIG, make_folder
from tests.integration.test_service_process import enrolled_with, serving

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return make_folder(tmp_path / "state")


def fedpeer(
    *arguments: str, folder: StateFolder | None = None, cwd: Path | None = None, to: str = "", path: str = ""
) -> "subprocess.CompletedProcess[str]":
    """A command of the operator; `to` is what a shell makes of its standard output, `path` Python's."""
    words = [*arguments] if folder is None else [*arguments, "--state", str(folder.path)]
    if not to and not path:
        return commands.fedpeer(*words, folder=cwd)
    return subprocess.run(
        ["bash", "-c", f"{shlex.join([sys.executable, '-m', 'fedpeer', *words])} {to}"],
        capture_output=True, text=True, timeout=120, check=False, cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": path or str(ROOT)},
    )  # fmt: skip


def usable(folder: StateFolder) -> int:
    """Invitations that can still be used."""
    with Database(folder.database_url(folder.config())).read() as connection:
        rows = connection.exec_driver_sql("SELECT serial, expires_at FROM invitations").all()
    return sum(serial is None and expires > 0 for serial, expires in rows)


def fingerprint(pem: str) -> str:
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, 64, 2))


def test_invite_says_what_to_hand_over_and_its_command_enrols(folder: StateFolder, tmp_path: Path) -> None:
    with serving(folder.path) as (_, addresses):
        done = fedpeer("coordinator", "invite", "hospital-a", folder=folder)
        assert done.returncode == 0, done.stderr
        token, *rest = done.stdout.splitlines()
        text = "\n".join(rest)
        ports = {name: address.rpartition(":")[2] for name, address in addresses.items()}
        assert f"market       127.0.0.1:{ports['market']}" in text
        assert f"enrolment    127.0.0.1:{ports['public']}" in text
        authority = (folder.path / "authority.pem").read_text()
        assert f"fingerprint  {fingerprint(authority)}" in text
        [command] = [line for line in rest if line.startswith("  fedpeer participant init")]
        assert f"FEDPEER_INVITATION={token}" in command
        place = tmp_path / "hospital-a"
        place.mkdir()
        (place / "authority.pem").write_text(authority)
        pasted = command.strip().replace("fedpeer participant", f"{sys.executable} -m fedpeer participant")
        enrolled = subprocess.run(
            ["bash", "-c", pasted], cwd=place, capture_output=True, text=True, timeout=120, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert enrolled.returncode == 0, enrolled.stderr
        assert "enrolled hospital-a" in enrolled.stdout


@pytest.mark.parametrize("address", ["0.0.0.0:7443", "[::]:7443"])
def test_addresses_that_are_handed_over_can_be_reached(tmp_path: Path, address: str) -> None:
    config = CONFIG.replace('market = "127.0.0.1:0"', f"market = {json.dumps(address)}")
    folder = make_folder(tmp_path / "state", config)
    operator = Operator(folder)
    assert operator.entrance().market == "localhost:7443"
    operator.close()


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("> /dev/full", "No space left on device"),
        pytest.param(">&-", "it is closed", marks=pytest.mark.extended),
        pytest.param("| :", "Broken pipe", marks=pytest.mark.extended),
    ],
)
def test_an_act_whose_result_nobody_can_read_is_done_and_says_so(
    folder: StateFolder, to: str, why: str
) -> None:
    fedpeer("coordinator", "invite", "ann", folder=folder)
    if to == "| :":  # the exit code of the command and not of the reader, which has gone before it writes
        to = "> >(exec true); code=$?; wait; exit $code"
        why = ""
    key = str(folder.signing_key().verification_key)
    rotated = fedpeer("coordinator", "log-key", "rotate", folder=folder, to=to)
    revoked = fedpeer("coordinator", "revoke", "ann", folder=folder, to=to)
    after = str(folder.signing_key().verification_key)
    assert after != key
    assert usable(folder) == 0
    for done, said in ((rotated, after), (revoked, "Its open invitation is withdrawn")):
        if not why and done.returncode == 0:
            continue  # the reader went late
        assert done.returncode == UNSHOWN, done.stderr
        assert f"Done, but standard output cannot be written ({why}" in done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("to", ["> /dev/full", pytest.param(">&-", marks=pytest.mark.extended)])
def test_an_invitation_that_nobody_can_read_is_withdrawn_again(folder: StateFolder, to: str) -> None:
    done = fedpeer("coordinator", "invite", "ann", folder=folder, to=to)
    assert done.returncode == 2
    assert "the invitation of ann is withdrawn again: standard output cannot be written" in done.stderr
    assert usable(folder) == 0
    assert fedpeer("coordinator", "invite", "ann", folder=folder).returncode == 0
    assert usable(folder) == 1


def test_closed_standard_input_is_nobody_who_can_be_asked(folder: StateFolder, tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text(
        'id = "t"\nQ = 1000\nphi = 300\nupsilon = 200\nreference = ["1/2", "1/2"]\n[rule]\nname = "paper"\n'
        '[schedule]\nrounds = 1\ncapacity = 3\n[recipe]\nmodel = "digits-cnn"\nsamples = 20\n'
    )
    done = fedpeer("coordinator", "open", str(file), folder=folder, to="<&-")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fedpeer: nobody can be asked here; give --yes")


def test_a_second_revocation_says_that_it_withdraws_an_invitation(folder: StateFolder) -> None:
    with serving(folder.path) as (_, addresses):
        assert addresses
        invitation = json.loads(fedpeer("coordinator", "invite", "ann", "--json", folder=folder).stdout)
        asyncio.run(enrolled_with(addresses, "ann", invitation))
        first = fedpeer("coordinator", "revoke", "ann", folder=folder)
        fedpeer("coordinator", "invite", "ann", folder=folder)
        second = fedpeer("coordinator", "revoke", "ann", folder=folder)
        third = fedpeer("coordinator", "revoke", "ann", folder=folder)
    assert first.stdout == "ann is revoked.\n"
    assert second.stdout == "ann was revoked before. Its open invitation is withdrawn.\n"
    assert third.stdout == "ann was revoked before.\n"


def test_hosts_are_not_left_out_in_silence(tmp_path: Path) -> None:
    configured = make_folder(tmp_path / "a", CONFIG + 'hosts = ["localhost", "127.0.0.1"]\n')
    operator = Operator(configured)
    before = (configured.path / "server.pem").read_bytes()
    with pytest.raises(
        FolderError, match=r"server\.hosts .* names 127\.0\.0\.1 too.*add --host 127\.0\.0\.1"
    ):
        operator.renew_server(["localhost", "new.example.org"])
    assert (configured.path / "server.pem").read_bytes() == before
    made = operator.renew_server(["localhost", "127.0.0.1", "new.example.org"])
    assert "new.example.org" in certificate_hosts(made.certificate)
    operator.close()
    free = make_folder(tmp_path / "b")
    done = fedpeer("coordinator", "certificate", "renew", "--host", "localhost", folder=free)
    assert "It is no longer for 127.0.0.1." in done.stdout


def test_certificates_that_the_service_refuses_are_not_said_to_be_in_force(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "state")
    with serving(folder.path):
        # What the service read at its start asks for a name that the new certificate has not.
        config = folder.path / "coordinator.toml"
        good = fedpeer("coordinator", "certificate", "renew", "--host", "localhost", folder=folder)
        assert good.returncode == 0, good.stderr
        assert "In force" in good.stderr
        assert config.exists()
    named = make_folder(tmp_path / "named", CONFIG + 'hosts = ["127.0.0.1"]\n')
    text = (named.path / "coordinator.toml").read_text()
    try:
        with serving(named.path):
            (named.path / "coordinator.toml").write_text(text.replace('hosts = ["127.0.0.1"]\n', ""))
            bad = fedpeer("coordinator", "certificate", "renew", "--host", "localhost", folder=named)
    except AssertionError:
        pass  # its log has the error, as it should
    assert bad.returncode == UNCONFIRMED, bad.stderr
    assert "NOT IN FORCE: the coordinator that runs goes on with the certificates it had" in bad.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"hello", "it has no block -----BEGIN CERTIFICATE-----"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "its block is damaged"),
    ],
)
def test_a_certificate_that_is_none_is_described_in_our_own_words(
    folder: StateFolder, content: bytes, said: str
) -> None:
    (folder.path / "server.pem").write_bytes(content)
    with pytest.raises(FolderError, match=said) as caught:
        folder.server()
    assert "cryptography" not in str(caught.value)
    assert len(str(caught.value)) < MAX_REFUSAL_SENTENCE


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [fifo, device])
@pytest.mark.parametrize("name", ["ledger.key", "authority.key", "authority.pem", "server.key"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_one_sentence(
    folder: StateFolder, name: str, make: Callable[[Path], None]
) -> None:
    make(folder.path / name)
    reads: dict[str, Callable[[], Any]] = {
        "ledger.key": folder.signing_key,
        "authority.key": folder.authority,
        "authority.pem": folder.authorities,
        "server.key": folder.server,
    }
    with pytest.raises(ValueError, match=r"is a (pipe|device); expected a regular file"):
        reads[name]()


@pytest.mark.parametrize("make", [fifo, device])
@pytest.mark.parametrize("name", ["plan.toml", "plan.json", "plan"])
def test_a_plan_that_is_no_file_is_one_sentence(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / name)
    done = fedpeer("plan", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a regular file" in done.stderr


def test_a_full_target_of_a_backup_is_not_the_databases_fault(
    folder: StateFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DatabaseFull("the database has no space left")

    monkeypatch.setattr("coordinator.backup._copy_database", full)
    database = Database(folder.database_url(folder.config()))
    with pytest.raises(FolderError, match="has no space left for the backup"):
        write_backup(folder, database, tmp_path / "b.tar", lambda market: Retention(0, True), 0)
    assert not list(tmp_path.glob("*b.tar*"))
    database.close()


def test_revocations_from_the_log_itself_are_nothing_and_say_so(folder: StateFolder) -> None:
    done = fedpeer("coordinator", "carry-revocations", folder.database_url(folder.config()), folder=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("nothing: the copy has no entry that this log has not")
    assert "contradict" not in done.stdout


@pytest.mark.parametrize("address", ["::1:7443", "fe80::1:7443", "[::1:7443"])
def test_an_ipv6_address_wants_brackets(address: str) -> None:
    with pytest.raises(ServeError, match="write an IPv6 address in brackets"):
        split_address("server.market", address)
    assert split_address("server.market", "[::1]:7443") == ("::1", 7443)


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":7443", "localhost:65536", "localhost:7²"])
def test_an_address_without_a_port_that_there_is_is_refused(address: str) -> None:
    with pytest.raises(ServeError, match=r"expected host:port such as 0\.0\.0\.0:7443"):
        split_address("server.market", address)


@pytest.mark.parametrize(
    "package",
    [
        "participant",
        pytest.param("coordinator", marks=pytest.mark.extended),
        pytest.param("mechanism", marks=pytest.mark.extended),
    ],
)
def test_a_folder_of_the_users_that_hides_a_package_is_one_sentence(tmp_path: Path, package: str) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    done = fedpeer("coordinator", "tasks", cwd=tmp_path, path=f"{tmp_path}:{ROOT}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"hides the package {package!r}" in done.stderr
    (tmp_path / package / "__init__.py").unlink()  # a folder alone hides nothing
    done = fedpeer("coordinator", "tasks", cwd=tmp_path, path=f"{tmp_path}:{ROOT}")
    assert "hides" not in done.stderr


@pytest.mark.extended
def test_what_only_reads_works_on_a_read_only_mount(folder: StateFolder, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a file system")
    mount = tmp_path / "mount"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(mount)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        shutil.copytree(folder.path, mount / "state")
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        there = StateFolder(mount / "state")
        for arguments in (["status"], ["tasks"], ["participants"], ["backup", str(tmp_path / "b.tar")]):
            # Processes: they let go of the mount.
            done_ = fedpeer("coordinator", *arguments, folder=there, path=str(ROOT))
            assert done_.returncode == 0, done_.stderr
        refused = fedpeer("coordinator", "invite", "ann", folder=there, path=str(ROOT))
        assert (refused.returncode, "accepts no writes" in refused.stderr) == (2, True)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


NO_HOME_TASK = """
id = "t"
Q = 1000
phi = 300
upsilon = 200
[schedule]
rounds = 1
capacity = 4
[recipe]
model = "digits-cnn"
samples = 60
epochs = 4
batch_size = 20
[data]
dataset = "digits"
validation = 300
test = 100
[evidence]
shadows = 14
"""


@pytest.mark.extended
def test_an_operator_without_a_home_or_a_name_runs_a_market(tmp_path: Path) -> None:
    """As container platforms have it: any user id, and no HOME."""
    stranger = ["unshare", "--user", "--map-user=54321", "--"]
    if not shutil.which("unshare") or subprocess.run([*stranger, "true"], check=False).returncode:
        pytest.skip("needs the right to make a user namespace")
    (tmp_path / "task.toml").write_text(NO_HOME_TASK)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    words = [*stranger, sys.executable, "-m", "fedpeer", "coordinator"]

    def called(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*words, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
            check=False,
        )  # fmt: skip

    ports = ("--market", "127.0.0.1:0", "--public", "127.0.0.1:0", "--metrics", "")
    state = ("--state", "state")
    for arguments in (
        ("init", "state", *ports), ("open", "task.toml", "--yes", *state), ("invite", "ann", *state),
        ("status", *state), ("backup", "b.tar", *state),
    ):  # fmt: skip
        done = called(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
    service = subprocess.Popen(
        [*words, "serve", "--json", *state],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert service.stdout is not None
    assert "addresses" in json.loads(service.stdout.readline())
    service.terminate()
    _, log = service.communicate(timeout=60)
    assert service.returncode == 0, log
    assert "Traceback" not in log


def test_data_without_a_home_lie_below_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPEER_DATA", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert data_folder() == Path("/.cache/fedpeer/data")
