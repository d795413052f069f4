"""The page on extensions: its files are a distribution that works."""

import re
import tomllib
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extensions.md"

#: Entry points besides the page's, for what goes wrong.
WRONG = {
    "fedpeer.attacks": {"broken": "my_lab:NOTHING"},
    "fedpeer.datasets": {"no-data": "my_lab_wrong:seven"},
}


def files(page: Path) -> dict[str, str]:
    """The blocks of a page that begin with `# file: NAME`."""
    blocks = re.findall(r"(?ms)^```\w+\n# file: (\S+)\n(.*?)^```$", page.read_text())
    return dict(blocks)


def written_extension(folder: Path) -> Path:
    """The page's distribution as pip would leave it in a folder on the path, with two entry points that are wrong."""
    written = files(PAGE)
    project = tomllib.loads(written["pyproject.toml"])["project"]
    metadata = folder / f"my_lab-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = {group: {**points, **WRONG.get(group, {})} for group, points in project["entry-points"].items()}
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (folder / "my_lab.py").write_text(written["my_lab.py"])
    (folder / "my_lab_wrong.py").write_text("def seven():\n    return 7\n")
    return folder


def test_the_page_has_one_example_of_each() -> None:
    groups = tomllib.loads(files(PAGE)["pyproject.toml"])["project"]["entry-points"]
    named = set(re.findall(r"(?m)^\| `(fedpeer\.\w+)`", PAGE.read_text()))
    assert groups.keys() == named
