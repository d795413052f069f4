"""Mutates what money depends on and looks whether a test notices: `make mutants`.

    python -m tests.mutation [FILE ...] [--guards] [--operator NAME] [--sample N --seed S] [--report] [--diff]

Results go to `.mutants.jsonl`, a line a mutant, and count again as long as the file is the same; a survivor's only as
long as its tests are, too. So a run that was stopped goes on, and after a new test only the survivors are tried.

`tests/mutation/survivors.toml` names those that no test can or should kill, each with its reason. The exit code is 1
where a file has fewer than 95 % killed, where a survivor is not named, or where a named one is killed.
"""

import argparse
import difflib
import hashlib
import json
import random
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant, mutants
from tests.mutation.targets import TARGETS
from tests.mutation.workplace import ROOT, Workplace

RESULTS = ROOT / ".mutants.jsonl"
SURVIVORS = Path(__file__).parent / "survivors.toml"

#: Of the mutants that could be killed, so many must be.
LEAST = 0.95


def digest(*paths: Path) -> str:
    """Of the files, and of the Python files below the folders."""
    found = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


def chosen(file: str, options: argparse.Namespace) -> list[Mutant]:
    found = mutants((ROOT / file).read_text())
    if options.guards:
        found = [m for m in found if m.operator == "guard"]
    if options.operator:
        found = [m for m in found if m.operator in options.operator]
    if options.sample and options.sample < len(found):
        picked = random.Random(f"{options.seed} {file}").sample(range(len(found)), options.sample)
        found = [found[i] for i in sorted(picked)]
    return found


def known() -> dict[tuple[str, str], dict[str, Any]]:
    """The last result of each mutant that still counts."""
    results: dict[tuple[str, str], dict[str, Any]] = {}
    if not RESULTS.exists():
        return results
    sources = {file: digest(ROOT / file) for file in TARGETS if (ROOT / file).exists()}
    tests = {file: digest(*(ROOT / t for t in TARGETS[file])) for file in sources}
    for line in RESULTS.read_text().splitlines():
        try:
            result = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        file = result["file"]
        if result["source"] != sources.get(file):
            continue
        if result["status"] == "survived" and result["tests"] != tests[file]:
            results.pop((file, result["mutant"]), None)
            continue
        results[file, result["mutant"]] = result
    return results


def try_all(files: list[str], options: argparse.Namespace) -> None:
    results = known()
    wanted = {file: [m for m in chosen(file, options) if (file, m.name) not in results] for file in files}
    if not any(wanted.values()):
        return
    keys = {
        file: {
            "file": file,
            "source": digest(ROOT / file),
            "tests": digest(*(ROOT / t for t in TARGETS[file])),
        }
        for file in wanted
    }  # of what is copied now, whatever is edited meanwhile
    with Workplace() as place, RESULTS.open("a") as out:
        for file, left in wanted.items():
            if not left:
                continue
            whole = place.run(file, None, TARGETS[file], 1200)
            if whole.status != "survived":
                raise SystemExit(f"{file}: its tests fail without a mutant ({whole.status}, {whole.by})")
            limit = 30 + 5 * whole.seconds
            print(f"{file}: {len(left)} mutants, {whole.seconds:.1f} s a run", flush=True)
            with place.collected(file, TARGETS[file]) as collected:
                same = collected.run((ROOT / file).read_text(), limit)
                if same is None or same.status != "survived":
                    raise SystemExit(f"{file}: its tests fail in a fork without a mutant ({same})")
                for mutant in left:
                    outcome = collected.run(mutant.source, limit) if collected.fits(mutant.source) else None
                    if outcome is None or outcome.status == "survived":
                        outcome = place.run(file, mutant.source, TARGETS[file], limit)
                    line = {**keys[file], "mutant": mutant.name, "line": mutant.line, **asdict(outcome)}
                    out.write(json.dumps(line) + "\n")
                    out.flush()
                    if outcome.status == "survived":
                        print(f"  survived {file}:{mutant.line} {mutant.name}", flush=True)


def accepted() -> dict[tuple[str, str], str]:
    """Reason of each survivor that is named."""
    named = tomllib.loads(SURVIVORS.read_text()).get("survivor", [])
    return {(s["file"], s["mutant"]): s["reason"] for s in named}


def report(files: list[str], options: argparse.Namespace) -> int:
    results, named, code = known(), accepted(), 0
    for file in files:
        considered = chosen(file, options)
        tried = [m for m in considered if (file, m.name) in results]
        if not tried:
            continue
        alive = [m for m in tried if results[file, m.name]["status"] == "survived"]
        excused = [m for m in alive if (file, m.name) in named]
        killed, able = len(tried) - len(alive), len(tried) - len(excused)
        share = killed / able if able else 1.0
        print(
            f"{file}: {killed} of {len(tried)} killed, {len(excused)} survivors named, {share:.1%} of the rest"
            f" ({len(considered)} in the sample)"
        )
        if share < LEAST or len(alive) > len(excused):
            code = 1
        for mutant in alive:
            if (file, mutant.name) not in named:
                print(f"  survived {file}:{mutant.line} {mutant.name}")
                if options.diff:
                    print("\n".join(difference(file, mutant)))
    for file, name in named:
        if file not in files:
            continue
        if (result := results.get((file, name))) is not None and result["status"] != "survived":
            print(f"  named, but killed: {file} {name}")
            code = 1
        elif all(m.name != name for m in mutants((ROOT / file).read_text())):
            print(f"  named, but no mutant any more: {file} {name}")
            code = 1
    return code


def difference(file: str, mutant: Mutant) -> Iterator[str]:
    before = (ROOT / file).read_text().splitlines()
    return difflib.unified_diff(before, mutant.source.splitlines(), lineterm="", n=1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="tries mutants")
    parser.add_argument("file", nargs="*", help="of the table in targets.py; all by default")
    parser.add_argument("--guards", action="store_true", help="only checks left out, one at a time")
    parser.add_argument("--operator", action="append", help="only mutants of this kind")
    parser.add_argument("--sample", type=int, default=0, help="at most so many of each file")
    parser.add_argument("--seed", default="0", help="of the sample")
    parser.add_argument("--report", action="store_true", help="say what is known, try nothing")
    parser.add_argument("--diff", action="store_true", help="show the survivors' changes")
    options = parser.parse_args()
    files = options.file or [file for file in TARGETS if (ROOT / file).exists()]
    if unknown := [file for file in files if file not in TARGETS]:
        raise SystemExit(f"{', '.join(unknown)}: not in tests/mutation/targets.py")
    if not options.report:
        try_all(files, options)
    return report(files, options)


if __name__ == "__main__":
    sys.exit(main())
