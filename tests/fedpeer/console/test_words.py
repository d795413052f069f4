"""What pages say in words: checks without their figures, times without what is too small to matter."""

import pytest

from fedpeer.console.words import duration, money, plainly

FIGURES = {"distance": "0.000118"}


@pytest.mark.parametrize(
    ("explanation", "figures", "plain"),
    [
        (
            "The model is the broadcast model again, or nearly: its distance is 0.000118 of what training changes; "
            "expected at least 0.688. Train on your own data and submit the result. At most 0.01 fail.",
            FIGURES,
            "The model is the broadcast model again, or nearly. Train on your own data and submit the result.",
        ),
        ("The claim of 0.3 lies outside.", FIGURES, "The claim of 0.3 lies outside."),
        (
            "No model came. It said: back in 3 days, <b>perhaps</b>.",
            {},
            "No model came. It said: back in 3 days, <b>perhaps</b>.",
        ),
        ("", FIGURES, ""),
    ],
)
def test_a_check_is_told_without_its_figures(explanation: str, figures: dict[str, str], plain: str) -> None:
    assert plainly(explanation, figures) == plain


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0 s"), (61, "1 min 1 s"), (600, "10 min"), (7_200, "2 h"), (90_000, "1 d 1 h")],
)
def test_a_duration_has_no_empty_part(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_money_has_two_decimals_a_true_minus_and_the_exact_amount_behind() -> None:
    assert str(money(-1_005_001)) == (
        '<data class="money" value="-1005001" title="−1.005001 credits">−1.01</data>'
    )
