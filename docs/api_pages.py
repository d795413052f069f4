"""Adds to the site a page for every public module of participant, mechanism and fedpeer, and one for the examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("participant", "mechanism", "fedpeer")
#: Generated from the .proto sources, and what only the command line calls.
LEFT_OUT = ("fedpeer.v1", "fedpeer.cli", "fedpeer.demo", "fedpeer.__main__")


def modules() -> Iterator[str]:
    """Dotted names of the public modules, in order."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            private = any(part.startswith("_") and part != "__init__" for part in parts)
            if not private and not name.startswith(LEFT_OUT):
                yield name


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Called by mkdocs with the files of docs/."""
    stable = "[What is public](../reference/public.md)"
    index = ["# API", "", f"Every public module, from its docstrings. What is stable: {stable}.", ""]
    for name in modules():
        page = f"# {name}\n\n::: {name}\n"
        files.append(
            File.generated(config, f"api/{name}.md", content=page, inclusion=InclusionLevel.NOT_IN_NAV)
        )
        index.append(f"- [{name}]({name}.md)")
    files.append(File.generated(config, "examples.md", content=(ROOT / "examples" / "README.md").read_text()))
    files.append(File.generated(config, "api/index.md", content="\n".join(index) + "\n"))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with each page: what lies beside docs/ in the repository has a page on the site."""
    return markdown.replace("](../examples/README.md)", "](examples.md)")
