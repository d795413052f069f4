"""What deploy/ says is what its readers take: Kubernetes' schemas, systemd, a shell, our configuration.

No engine is needed. Where helm, kubectl or systemd-analyze is not there, what only it can say is skipped.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from compose_spec import PyCompose

from coordinator.config import WORKER_FILE, WorkerConfig, read_config
from coordinator.folder import StateFolder
from coordinator.metrics import Metrics
from fedpeer.__main__ import application

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

#: A minor version of Kubernetes whose schemas the manifests must fit.
KUBERNETES = "1.33"

URL = "postgresql+psycopg://fedpeer@postgresql/fedpeer"


def documents(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def checked(manifests: list[Any]) -> None:
    """Each fits its schema, and no container of ours can more than it must."""
    for each in manifests:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
        pod = each.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in [*pod["containers"], *pod.get("initContainers", ())]:
            locked = container["securityContext"]
            assert locked["capabilities"] == {"drop": ["ALL"]}
            assert not locked["allowPrivilegeEscalation"]
            assert container["resources"]["requests"]
            assert "memory" in container["resources"]["limits"]
        if each["metadata"]["name"] != "worker":  # which serves nothing
            assert all("readinessProbe" in container for container in pod["containers"])


def test_the_manifests_fit_kubernetes_and_its_adapter_finds_our_metric() -> None:
    base = documents((DEPLOY / "kustomize/base/fedpeer.yaml").read_text())
    checked(base)
    for path in ("postgresql.yaml", "object-store.yaml"):
        checked(documents((DEPLOY / "kustomize/all-in-one" / path).read_text()))
    kinds = {each["kind"] for each in base}
    assert kinds >= {"NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler", "StatefulSet"}
    [scaler] = [each for each in base if each["kind"] == "HorizontalPodAutoscaler"]
    [metric] = scaler["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "fedpeer_worker_calls"
    exist = {family.name for family in Metrics().registry.collect()}
    templates = (DEPLOY / "helm/fedpeer/templates").glob("*.yaml")
    named = {name for path in templates for name in re.findall(r"metric: {name: (\w+)}", path.read_text())}
    assert named == {"fedpeer_worker_calls", "fedpeer_uploads", "fedpeer_watchers"}
    assert named <= exist
    # Workers, which may run somebody's own code, have no word of the database.
    [workers] = [
        each for each in base if (each["kind"], each["metadata"]["name"]) == ("Deployment", "worker")
    ]
    assert "PGPASSWORD" not in str(workers)
    assert "envFrom" not in str(workers)


def test_kustomize_base_is_what_the_chart_renders() -> None:
    rendered = said(tool("helm"), "template", "fedpeer", str(DEPLOY / "helm/fedpeer"))
    base = (DEPLOY / "kustomize/base/fedpeer.yaml").read_text()
    assert documents(rendered) == documents(base), "make manifests"
    said(tool("helm"), "lint", "--strict", str(DEPLOY / "helm/fedpeer"))
    other = (
        "--set",
        "console.enabled=false",
        "--set",
        "hosts={a.example,b.example}",
        "--set",
        "storageClass=fast",
    )
    checked(documents(said(tool("helm"), "template", "fedpeer", str(DEPLOY / "helm/fedpeer"), *other)))
    several = ("--set", "fronts.max=4", "--set", "accessMode=ReadWriteMany", "--set", "claim=shared")
    found = documents(said(tool("helm"), "template", "fedpeer", str(DEPLOY / "helm/fedpeer"), *several))
    checked(found)
    scaled = [each for each in found if each["kind"] == "HorizontalPodAutoscaler"]
    assert {each["metadata"]["name"] for each in scaled} == {"coordinator", "worker"}
    [serves] = [each for each in found if each["kind"] == "StatefulSet"]
    assert "replicas" not in serves["spec"]
    assert {"persistentVolumeClaim": {"claimName": "shared"}, "name": "state"} in serves["spec"]["template"][
        "spec"
    ]["volumes"]
    assert [each["metadata"]["name"] for each in found if each["kind"] == "PersistentVolumeClaim"] == [
        "shared"
    ]
    assert serves["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "coordinator",
        "serve",
        "--fronts",
        "1",
    ]


def test_kustomize_puts_a_whole_market_together() -> None:
    found = documents(said(tool("kubectl"), "kustomize", str(DEPLOY / "kustomize/all-in-one")))
    checked(found)
    assert {each["metadata"]["namespace"] for each in found} == {"fedpeer"}
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    assert names > {("StatefulSet", name) for name in ("coordinator", "postgresql", "object-store")}
    assert ("HorizontalPodAutoscaler", "worker") not in names


def run_script(script: str, state: Path, tmp_path: Path) -> None:
    """Runs a script that a container would, with `fedpeer` as this Python has it."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "fedpeer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedpeer "$@"\n')
    (programs / "fedpeer").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "FEDPEER_STATE": str(state),
    }
    subprocess.run(["sh", "-eu", "-c", script], env=environment, check=True, capture_output=True, text=True)


def market_of(state: Path, tmp_path: Path) -> None:
    config = StateFolder(state).config()
    assert config.s3.bucket == "fedpeer"
    assert config.s3.endpoint == "http://object-store:9000"
    assert config.workers.executor == "dask://scheduler:8786"
    assert config.server.metrics == "0.0.0.0:9464"


def test_the_chart_makes_a_state_folder_once(tmp_path: Path) -> None:
    base = documents((DEPLOY / "kustomize/base/fedpeer.yaml").read_text())
    [files] = [each["data"] for each in base if each["kind"] == "ConfigMap"]
    (tmp_path / "sections.toml").write_text(files["sections.toml"])
    script = files["init.sh"].replace("/etc/fedpeer", str(tmp_path)).replace(URL, "sqlite:///coordinator.db")
    state = tmp_path / "state"
    run_script(script, state, tmp_path)
    market_of(state, tmp_path)
    before = (state / "coordinator.toml").read_text()
    # As it is where it was killed in the middle, and where it was not.
    for left in (before.partition("\n# Added by deploy")[0], before):
        (state / "coordinator.toml").write_text(left)
        run_script(script, state, tmp_path)
        assert (state / "coordinator.toml").read_text() == before


def test_compose_makes_the_folders_of_a_market_and_its_workers(tmp_path: Path) -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    whole = yaml.safe_dump({key: value for key, value in compose.items() if not key.startswith("x-")})
    PyCompose.from_yaml(whole).validate()  # which knows no merge keys
    services = compose["services"]
    for name in ("init", "coordinator", "scheduler", "worker"):
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
    assert services["scheduler"]["env_file"] == [], "who only passes work on holds no secret"
    mounted = {volume.split(":")[0] for each in services.values() for volume in each.get("volumes", ())}
    assert {name for name in mounted if not name.startswith(".")} == compose["volumes"].keys()
    [script] = services["init"]["command"]
    script = (
        script.replace("$$", "$")
        .replace("/etc/fedpeer", str(DEPLOY))
        .replace("/var/lib/fedpeer-worker", str(tmp_path / "worker"))
        .replace(URL, "sqlite:///coordinator.db")
    )
    state = tmp_path / "state"
    for _ in range(2):
        run_script(script, state, tmp_path)
    market_of(state, tmp_path)
    made = read_config(tmp_path / "worker" / "folder" / WORKER_FILE, WorkerConfig)
    assert made.scheduler == "dask://scheduler:8786"
    assert made.s3.bucket == "fedpeer"


@pytest.mark.parametrize("unit", ["fedpeer-coordinator.service", "fedpeer-worker.service"])
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    assert "/opt/fedpeer/bin/fedpeer" in text
    (tmp_path / unit).write_text(text.replace("/opt/fedpeer/bin/fedpeer", "/bin/true"))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(tmp_path / unit)], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert complaints == []
    assert done.returncode == 0, done.stderr


def commands() -> Iterator[tuple[str, list[str]]]:
    """Where a command of ours stands in deploy/ or the Dockerfile, and its words; scripts are run above."""
    for name, service in yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].items():
        if "entrypoint" not in service:
            yield f"compose.yaml: {name}", service["command"]
    for each in documents((DEPLOY / "kustomize/base/fedpeer.yaml").read_text()):
        where = f"{each['kind']} {each['metadata']['name']}"
        pod = each.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            yield f"{where}: {container['name']}", container["args"]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "exec" in container.get(probe, {}):
                    asked = container[probe]["exec"]["command"]
                    assert asked[0] == "fedpeer"
                    yield f"{where}: {container['name']} {probe}", asked[1:]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        [start] = re.findall(r"(?m)^ExecStart=/opt/fedpeer/bin/fedpeer (.+)$", unit.read_text())
        yield unit.name, start.split()
    [check] = re.findall(r"(?m)^HEALTHCHECK .* CMD (.+)$", (ROOT / "Dockerfile").read_text())
    yield "Dockerfile", json.loads(check)[1:]


@pytest.mark.parametrize(("where", "words"), [pytest.param(*each, id=each[0]) for each in commands()])
def test_a_command_is_one_of_ours(where: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(application(words[0]))
    rest = list(words)
    while rest and rest[0] in getattr(command, "commands", ()):
        command = command.commands[rest.pop(0)]
    command.make_context(where, rest)  # which refuses what it does not take


def test_the_image_has_what_its_dockerfile_copies() -> None:
    left_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"(?m)^COPY (?!--from)(.+)$", (ROOT / "Dockerfile").read_text())
        for source in line.split()[:-1]
    }
    assert copied == left_in
    assert all((ROOT / source).exists() for source in copied)
    # What is installed from them, by pyproject.toml.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tools = project["tool"]["setuptools"]
    modules = {f"{name}.py" for name in tools["py-modules"]}
    packages = {name.rstrip("*") for name in tools["packages"]["find"]["include"]}
    assert copied == modules | packages | {"pyproject.toml", project["project"]["readme"]}


def test_only_who_serves_has_the_databases_password() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in ("worker", "scheduler", "object-store"):
        service = services[name]
        assert not service.get("env_file") or service["environment"]["PGPASSWORD"] == "", name
