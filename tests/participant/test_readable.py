"""Results as people meet them: in `print`, in a console, in a notebook."""

from decimal import Decimal
from fractions import Fraction

from mechanism.settlement import Verdict
from participant.effort import Decision, Explanation, Point
from participant.report import Receipt, RoundReport, Settlement, TaskReport

RECEIPT = Receipt("model-1-abc", "cats-1", 1, "model", bytes(32), 17, late=False)
ECHO = Verdict("echo", False, "It is the model that was sent. <script>alert(1)</script>")
SETTLEMENT = Settlement(
    "cats-1", 1, 1_065_856, 200, 0, Fraction(1, 4), Fraction(3, 10), ("bob",), (ECHO,), 40
)
PAID = RoundReport(1, RECEIPT, "", SETTLEMENT, {"<i>loss": 0.25})
MISSED = RoundReport(2, None, "the training failed", None, {})
REPORT = TaskReport("cats-1", "ada", "CLOSED", Decimal("0.5"), Fraction(1, 4), RECEIPT, (PAID, MISSED))


def test_a_receipt_says_what_it_is_for() -> None:
    assert str(RECEIPT) == "cats-1: the model of round 1 is recorded as ledger entry 17"
    assert repr(RECEIPT) == f"<Receipt {RECEIPT}>"
    late = Receipt("claim-0-abc", "cats-1", 0, "claim", bytes(32), 3, late=True)
    assert str(late) == "cats-1: the claim is recorded as ledger entry 3; it came too late to be scored"


def test_a_report_is_a_line_a_round_and_a_table_in_a_notebook() -> None:
    assert str(REPORT).splitlines()[0] == "cats-1: CLOSED, 1.065856 credits."
    assert str(REPORT).splitlines()[2] == "  round 2: the training failed"
    assert repr(REPORT) == "<TaskReport cats-1: CLOSED, 1.065856 credits.>"
    assert repr(REPORT.rounds) == f"({PAID!r}, <RoundReport round 2: the training failed>)"
    html = REPORT._repr_html_()
    assert "<td>1</td><td>1.065856</td>" in html
    assert "<td>the training failed</td>" in html


def test_what_others_wrote_is_no_markup() -> None:
    for item in (REPORT, PAID, SETTLEMENT):
        html = item._repr_html_()
        assert "<script>" not in html
        assert "<i>" not in html
        assert "&lt;script&gt;" in html


def test_a_settlement_says_what_it_rests_on() -> None:
    assert str(SETTLEMENT).splitlines()[:2] == [
        "cats-1, round 1: 1.065856 credits, 0.000000 expected before peers were drawn",
        "  degree: scored by 0.3000, 0.2500 claimed; against bob",
    ]


def test_an_explanation_is_a_table_with_its_reason() -> None:
    points = (Point(0.0, 0.5, 1.0, 0.3, 0.0, 0.9), Point(1.0, 0.2, 1.5, 0.2, 0.2, 1.2))
    found = Explanation("cats-1", Fraction(1, 2), Decision(Decimal("1"), "An effort of 1 is best."), points)
    html = found._repr_html_()
    assert "<th>utility</th>" in html
    assert (
        "<td>1.00</td><td>0.2000</td><td>1.5000</td><td>0.2000</td><td>0.2000</td><td>1.3000</td><td>1.2000</td>"
        in html
    )
    assert "An effort of 1 is best." in html
    assert repr(found) == "<Explanation Task cats-1: your data have a non-iid degree of 0.5000.>"
