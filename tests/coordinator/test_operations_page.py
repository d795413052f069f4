"""The operator's page names every metric and every key that there is, and none that there is not."""

import re
from pathlib import Path

from pydantic import BaseModel

from coordinator.cli import app
from coordinator.config import ServiceConfig
from coordinator.metrics import Metrics
from fedpeer.protocol.errors import Code

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()


def test_every_metric_is_named_and_exists() -> None:
    exist = set()
    for family in Metrics().registry.collect():
        exist.add(f"{family.name}_total" if family.type == "counter" else family.name)
    named = set(re.findall(r"\bfedpeer_[a-z_*]+", PAGE))
    patterns = {name for name in named if "*" in name}
    assert named - patterns <= exist
    covered = {name for name in exist for p in patterns if re.fullmatch(p.replace("*", ".*"), name)}
    assert exist - named - covered == set()


def test_every_key_of_the_configuration_is_named_and_exists() -> None:
    exist = set()
    for name, field in ServiceConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            exist |= {f"{name}.{key}" for key in kind.model_fields}
        else:
            exist.add(name)
    section = PAGE.split("### coordinator.toml")[1].split("###")[0]
    named = set(
        re.findall(
            r"`((?:server|storage|s3|workers|tracing|mail|oidc|payouts)\.[a-z_]+|name|notices)`", section
        )
    )
    assert named == exist


def test_every_reason_that_has_an_alarm_exists() -> None:
    for pattern in re.findall(r'reason=~?"([^"]+)"', PAGE):
        assert any(re.fullmatch(pattern, code.name) for code in Code), pattern


def test_every_command_is_named() -> None:
    commands = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    assert {name for name in commands if not re.search(rf"\b{name}\b", PAGE)} == set()
