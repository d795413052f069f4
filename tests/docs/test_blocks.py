"""What the pages show works: Python runs, TOML and JSON are well-formed, commands and options exist, targets too.

A Python block that is part of something longer follows `<!-- excerpt -->`: it must still compile. The tutorial's
blocks are run as a whole by tests/integration/test_tutorial.py, the README's program by test_readme.py.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from fedpeer.__main__ import application

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
RUN_ELSEWHERE = {"README.md", "tutorial.md", "extensions.md"}


class Block(NamedTuple):
    """A fenced block: where, its language, its text, and whether it is said to be an excerpt."""

    place: str
    language: str
    text: str
    excerpt: bool


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(
        r"(?ms)^(?P<excerpt><!-- excerpt -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", text
    ):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(f"{page.name}:{line}", found["language"], found["text"], bool(found["excerpt"]))


#: Pages made from docstrings show signatures, which are not programs.
BLOCKS = [block for page in PAGES if page.parent.name != "reference" for block in blocks(page)]


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.place
)
def test_python_runs(block: Block, tmp_path: Path) -> None:
    compile(block.text, block.place, "exec")
    if block.excerpt or block.place.partition(":")[0] in RUN_ELSEWHERE:
        return
    done = subprocess.run(
        [sys.executable, "-c", block.text],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in ("toml", "json")], ids=lambda block: block.place
)
def test_data_is_well_formed(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        assert json.loads(block.text)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """`fedpeer ...` lines of indented and fenced blocks, with continuation lines joined."""
    text, fenced = page.read_text().replace("\\\n", " "), False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        found = re.match(r"(    )?(?:\$ )?(?:\.venv/bin/)?fedpeer (?P<rest>[a-z].*)", line)
        if found and (fenced or found[1]):
            yield f"{page.name}:{number}", re.split(r" [|>] |\s+# ", found["rest"])[0].split()


@pytest.mark.parametrize(
    ("place", "words"),
    [pytest.param(place, words, id=place) for page in PAGES for place, words in commands(page)],
)
def test_a_command_and_its_options_exist(place: str, words: list[str]) -> None:
    command: Any = typer.main.get_command(application(words[0]))
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            return
        name = rest.pop(0)
        assert name in command.commands, f"{place}: there is no command {name}"
        command = command.commands[name]
    known = {
        option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]
    }
    for word in rest:
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", word) if word.startswith(("-", "[-")) else []:
            assert option in known | {"--help"}, f"{place}: {command.name} has no {option}"


def test_the_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    for page in PAGES:
        for words in re.findall(r"(?m)(?:^    |`)make ([a-z][a-z -]*[a-z])", page.read_text()):
            for target in words.split():
                assert target in targets, f"{page.name} names make {target}"
