"""Deletes the verifier's guards, one at a time, and runs the tests that matter: each must fail one.

    python -m tests.mutation.guards [--list] [--only TEXT] [--file PATH] [--results FILE]

A guard is an `if` whose body raises or reports a problem and nothing else, or a call that does nothing but check.
It is deleted in memory, in a forked process, whose functions get the code of the text without it; the files on the
disk are never touched. Then every forged and sound history is verified, as their tests do, those first that the guard
refuses, and the file's own tests are run, until one fails. Results can be kept in a file, so that an interrupted run
goes on where it was.
"""

import argparse
import ast
import copy
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb

import pytest

from mechanism.ledger.replay import Replay, ReplayError
from mechanism.ledger.verify import verify_ledger
from tests.ledger_forgeries import FORGERIES
from tests.ledger_histories import SHAPES, played
from tests.memory_source import KEY, MemorySource
from tests.mutation.targets import HISTORIES, TARGETS, VERIFIER
from tests.mutation.workplace import swap

ROOT = Path(__file__).resolve().parent.parent.parent

#: Guards whose deletion no test can see, and why.
EQUIVALENT: dict[str, str] = {}

#: Functions that check, and return nothing.
_CHECKS = (
    "check_step", "check_quorum", "check_round_seed", "check_opening", "identifier", "same", "same_parts", "_check",
    "_header", "_positive", "_at_least", "_decimal_digits", "_matching",
)  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """One guard.

    Attributes:
        number: among those of the file.
        line, end: where it stands.
        text: its condition, or the call; numbered from its second occurrence on.
    """

    file: str
    number: int
    line: int
    end: int
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.text}"


def _raises(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and _called(call) in ("_problem", "_stop")


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_guard(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        *before, last = statement.body
        harmless = all(isinstance(s, ast.Assign | ast.AnnAssign) for s in before)
        return harmless and (_raises(last) or (isinstance(last, ast.Return) and any(map(_raises, before))))
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and (
        _called(call) in _CHECKS or _called(call).startswith(("_check_", "check_", "verify_"))
    )


class _Deletion(ast.NodeTransformer):
    """Counts guards in the order of the text, and deletes one of them."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.found: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and _is_guard(node):
            number = len(self.found)
            self.found.append(copy.deepcopy(node))
            if number == self.wanted:
                # An `else` stays: without the guard it is what happens. So do the names that a closure takes along.
                rest = node.orelse if isinstance(node, ast.If) else []
                return ast.copy_location(ast.If(ast.Constant(False), [node], rest), node)
        return self.generic_visit(node)


def guards(file: str) -> list[Guard]:
    """Every guard of a file, in the order of its text."""
    walk = _Deletion(-1)
    walk.visit(ast.parse((ROOT / file).read_text()))
    texts = [ast.unparse(s.test if isinstance(s, ast.If) else s) for s in walk.found]
    places = [texts[:i].count(text) + 1 for i, text in enumerate(texts)]
    named = [text if place == 1 else f"{text}  [{place}]" for text, place in zip(texts, places, strict=True)]
    ends = [s.body[-1].end_lineno if isinstance(s, ast.If) else s.end_lineno for s in walk.found]
    return [
        Guard(file, i, s.lineno, ends[i] or s.lineno, t)
        for i, (s, t) in enumerate(zip(walk.found, named, strict=True))
    ]


def without(guard: Guard) -> str:
    """The file's text without a guard."""
    tree = _Deletion(guard.number).visit(ast.parse((ROOT / guard.file).read_text()))
    return ast.unparse(ast.fix_missing_locations(tree))


#: What the exit code of a child says.
_BY = ("", "histories", "tests", "an exception")


#: A forged history, the words of which one refuses it, and the lines of our files that the refusal came through.
_Forged = tuple[MemorySource, tuple[str, ...], set[tuple[str, int]]]


class Histories:
    """Every forged and sound history, made once."""

    def __init__(self) -> None:
        self.forged: list[_Forged] = []
        for one in FORGERIES:
            for _, ledger in one.cases():
                source = MemorySource(ledger)
                self.forged.append((source, one.words, _refused_at(source)))
        self.sound = [MemorySource(played(shape).log.entries) for shape in SHAPES.values()]

    def refused_by(self, guard: Guard) -> list[_Forged]:
        lines = {(guard.file, line) for line in range(guard.line, guard.end + 1)}
        return [one for one in self.forged if one[2] & lines]

    def notice(self, forged: Sequence[_Forged] | None = None) -> bool:
        """Whether one of them is judged otherwise than it should be; all, unless some are given."""
        for source, words, _ in self.forged if forged is None else forged:
            report = verify_ledger(source, KEY.verification_key)
            if report.verified or not any(word in report.problems[0].message for word in words):
                return True
        if forged is not None:
            return False
        return not all(verify_ledger(source, KEY.verification_key).verified for source in self.sound)


def _refused_at(source: MemorySource) -> set[tuple[str, int]]:
    replay = Replay()
    try:
        for data in source.data:
            replay.feed(data)
        replay.finish()
    except ReplayError as error:
        cause = error.__context__ or error
        return {
            (frame.f_code.co_filename.removeprefix(f"{ROOT}/"), line)
            for frame, line in walk_tb(cause.__traceback__)
        }
    return set()


def killed_by(guard: Guard, histories: Histories) -> str:
    """What fails without a guard: "histories", "tests", or nothing."""
    child = os.fork()
    if child == 0:
        try:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
                importlib.import_module(
                    guard.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                )
                try:
                    swap(ROOT / guard.file, without(guard))
                except ValueError:
                    os._exit(4)
                looks = [
                    (1, lambda: histories.notice(histories.refused_by(guard))),
                    (2, lambda: _tests_fail(guard)),
                    (1, histories.notice),
                ]
                os._exit(next((code for code, look in looks if look()), 0))
        except BaseException:
            os._exit(3)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in range(len(_BY)):
        raise RuntimeError(f"{guard.name}: it could not be deleted, or its tests not be run ({code})")
    return _BY[code]


def _tests_fail(guard: Guard) -> bool:
    # Without its guard a loop may have no end.
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "-o", "timeout=60"]
    # The histories have been verified, or will be.
    tests = [test for test in TARGETS[guard.file] if test not in HISTORIES[:2]]
    if not tests:
        return False
    code = pytest.main([*options, *(str(ROOT / test) for test in tests)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        os._exit(5)
    return code is pytest.ExitCode.TESTS_FAILED


def chosen(only: str | None, files: Sequence[str] | None) -> Iterator[Guard]:
    for name in files or VERIFIER:
        for guard in guards(name):
            if only is None or only in guard.text:
                yield guard


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name the guards and delete none")
    parser.add_argument("--only", help="guards with this text alone")
    parser.add_argument("--file", help="guards of this file alone", choices=VERIFIER, action="append")
    parser.add_argument(
        "--results", type=Path, help="keeps results; what stands there already is not run again"
    )
    given = parser.parse_args()
    every = list(chosen(given.only, given.file))
    if given.list:
        for guard in every:
            say(f"{guard.file}:{guard.line} {guard.text}")
        say(f"{len(every)} guards")
        return
    known: dict[str, str] = {}
    if given.results is not None and given.results.exists():
        known = json.loads(given.results.read_text())
    histories = Histories()
    if histories.notice():
        sys.exit("a history is judged wrongly with every guard in place")
    for guard in every:
        if guard.name in known:
            continue
        began = time.monotonic()
        known[guard.name] = killed_by(guard, histories)
        if given.results is not None:
            given.results.write_text(json.dumps(known, indent=1))
        verdict = f"killed by {known[guard.name]}" if known[guard.name] else "SURVIVES"
        say(f"{verdict} {guard.file}:{guard.line} {guard.text} ({time.monotonic() - began:.0f} s)")
    alive = [g for g in every if not known[g.name]]
    unexplained = [g for g in alive if g.name not in EQUIVALENT]
    say(f"{len(every)} guards, {len(every) - len(alive)} killed, {len(alive) - len(unexplained)} equivalent")
    for guard in alive:
        say(f"  {guard.file}:{guard.line} {guard.text}: {EQUIVALENT.get(guard.name, 'NO TEST FAILS')}")
    sys.exit(bool(unexplained))


if __name__ == "__main__":
    main()
