"""docs/ledger-format.md says what our code computes: each worked value, and the example ledger, byte for byte."""

from tests.conformance.example import LEDGER, OPENINGS, PAGE, example, filled, names_on, worked


def test_every_worked_value_on_the_page_is_what_our_code_gives() -> None:
    """Where this fails and the change is meant: python -m tests.conformance.example writes them anew."""
    page = PAGE.read_text()
    assert set(names_on(page)) <= worked().keys()
    for mine, theirs in zip(page.splitlines(), filled(page).splitlines(), strict=True):
        assert mine == theirs


def test_every_step_has_a_worked_value() -> None:
    page = PAGE.read_text()
    sections = page.split("\n## ")[1:]
    without = [text.split("\n")[0] for text in sections if "```worked" not in text]
    assert without == ["6. Reading the log", "9. States", "19. What a verifier answers"]


def test_the_example_ledger_is_the_one_that_our_code_writes() -> None:
    assert LEDGER.read_bytes() == example().lines()
    assert OPENINGS.read_bytes() == example().opened()
