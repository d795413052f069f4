from pathlib import Path

from fedpeer.protocol.errors import Code

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text()


def test_the_protocol_page_lists_every_refusal_as_it_is() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.count("|") == 4]
    assert rows == [f"| `{code.name}` | {code.status.name} | {code.advice} |" for code in Code]
