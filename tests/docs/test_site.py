"""The documentation site: whole, without a broken link, and without a request to any other host."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """What a page refers to: links that a reader follows, resources that the browser fetches, anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.resources.append(values["href"])
        elif "src" in values:
            self.resources.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("needs the extra fedpeer[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr  # `strict`: a link to a missing page or heading fails the build
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@pytest.mark.extended
def test_every_link_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 60
    for path, page in pages.items():
        if path.name == "404.html":  # its links are from the root
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)} links to {link}"
            if parts.fragment and target.suffix == ".html":
                anchors = pages[target].anchors
                assert unquote(parts.fragment) in anchors, f"{path.relative_to(site)} links to {link}"


@pytest.mark.extended
def test_no_page_asks_another_host_for_anything(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        foreign = [resource for resource in page.resources if re.match(r"(https?:)?//", resource)]
        assert not foreign, path
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//[^)'\"]+", path.read_text()), path


@pytest.mark.extended
def test_the_site_can_be_searched(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text()
    for word in ("noniid_degree", "escrow", "best_response", "fedpeer coordinator"):
        assert word in index


def documents() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from [
        ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    ]


@pytest.mark.parametrize("path", list(documents()), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_links_of_a_page_in_the_repository_hold(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        target = link.partition("#")[0]
        if target and not urlsplit(link).scheme:
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {link}"
