"""The mutants of a small module, by kind; and that every file of the table has some."""

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import accepted
from tests.mutation.operators import mutants
from tests.mutation.targets import TARGETS, VERIFIER

ROOT = Path(__file__).resolve().parent.parent.parent

#: Of `mechanism` outside the ledger: settlement, draw, evidence, and what they are written down by.
MECHANISM = (
    "dispute", "evidence", "lifecycle", "peers", "records", "settlement", "statements", "terms", "trees", "unmeasured",
)  # fmt: skip


def made(source: str) -> set[tuple[str, str]]:
    """Kind and changed line of every mutant of a module, spaces taken out."""
    changed = set()
    for mutant in mutants(source):
        before, after = source.splitlines(), mutant.source.splitlines()
        line = next(b for a, b in zip(before, after, strict=False) if a != b)
        changed.add((mutant.operator, line.replace(" ", "").replace("(", "").replace(")", "")))
    return changed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", {("boundary", "x=a<=b"), ("compared", "x=a>=b")}),
        ("x = a == b", {("compared", "x=a!=b")}),
        ("x = a is None", {("compared", "x=aisnotNone")}),
        ("x = 0 < a <= b", {
            ("boundary", "x=0<=a<=b"), ("compared", "x=0>=a<=b"), ("boundary", "x=0<a<b"), ("compared", "x=0<a>b"),
            ("number", "x=1<a<=b"), ("number", "x=-1<a<=b"),
        }),
        ("x = a and b", {("logic", "x=aorb"), ("logic", "x=a"), ("logic", "x=b")}),
        ("x = not a", {("negated", "x=a")}),
        ("x = a + b", {("arithmetic", "x=a-b")}),
        ("x = True", {("number", "x=False")}),
        ("x = 'name'", {("word", "x='nameX'")}),
        ("x = 'a sentence for people'", set()),
        ("x = f'{a + 1}'", set()),
        ("x = min(a, b)", {("chosen", "x=maxa,b")}),
        ("x = f(y=a.y, z=a.z)", {("swapped", "x=fy=a.z,z=a.z")}),
        ("x = zip(a, b, strict=True)", {("swapped", "x=zipb,a,strict=True")}),
        ("x: int | None = None", set()),
        ("'''What it says: 1 < 2.'''", set()),
        ("call(a)", {("removed", "pass")}),
        ("check(a)", {("guard", "pass")}),
        ("if a:\n    raise ValueError('no')", {
            ("guard", "ifFalse:"), ("negated", "ifnota:"), ("raised", 'raiseRuntimeError"another"'),
        }),
        ("def f(n=3):\n    return n", {
            ("number", "deffn=4:"), ("number", "deffn=2:"), ("returned", "returnNone"),
        }),
        ("def f() -> None:\n    return None", set()),
        ("try:\n    pass\nexcept (KeyError, OSError):\n    pass", {
            ("raised", "exceptOSError,:"), ("raised", "exceptKeyError,:"),
        }),
        ("x = [y for y in z if y]", {("negated", "x=[yforyinzifnoty]"), ("removed", "x=[yforyinzifTrue]")}),
    ],
)  # fmt: skip
def test_the_mutants_of_a_line(source: str, expected: set[tuple[str, str]]) -> None:
    assert made(source) == expected


def test_a_name_says_where_and_stays_when_other_code_comes_before_it() -> None:
    source = "class A:\n    def f(self):\n        return a < b\n"
    names = [m.name for m in mutants(source)]
    assert "A.f:boundary:a < b -> ((a) <= (b))#1" in names
    assert [m.name for m in mutants("import os\n\n\n" + source)] == names


@pytest.mark.parametrize("file", TARGETS)
def test_every_file_of_the_table_has_mutants_that_differ_and_tests_that_are_there(file: str) -> None:
    source = (ROOT / file).read_text()
    found = mutants(source)
    assert found
    assert len({m.name for m in found}) == len({m.source for m in found}) == len(found)
    for mutant in found[:: max(1, len(found) // 5)]:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(source))
    assert [test for test in TARGETS[file] if not (ROOT / test).is_file()] == []


def test_a_survivor_is_a_mutant_of_a_file_of_the_table_and_has_its_reason() -> None:
    named = accepted()
    made = {file: {m.name for m in mutants((ROOT / file).read_text())} for file, _ in named}
    assert [(file, name) for file, name in named if file not in TARGETS or name not in made[file]] == []
    assert all(named.values())


def test_the_table_has_every_file_that_money_and_evidence_depend_on() -> None:
    """Those of the verifier and of the service's record, so that a file that is split or renamed is not forgotten."""
    needed = {
        *(f"mechanism/{name}.py" for name in MECHANISM),
        *(
            f"coordinator/{name}.py"
            for name in ("admission", "commits", "receiving", "transaction", "upload_places")
        ),
        *(f"fedpeer/protocol/{name}.py" for name in ("codec", "frames")),
        *(f"participant/{name}.py" for name in ("journal", "steps")),
        *(str(path.relative_to(ROOT)) for path in (ROOT / "mechanism" / "ledger").rglob("*.py")),
    }
    definitions = {f"mechanism/ledger/{name}.py" for name in ("__init__", "errors", "store")}
    assert needed - definitions - TARGETS.keys() == set()
    assert {file for file in VERIFIER if not (ROOT / file).is_file()} == set()
