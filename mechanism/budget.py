"""The most that a task can cost.

    Budget = N * T * f(Q / Upsilon)

No payment exceeds f(Q / Upsilon), which two participants of degree 0 get from each other. Exact, rounded up.

Source: docs/mechanism.md, section 5; the escrow reserves it before anyone is asked to train.
"""

from decimal import ROUND_CEILING, Context, Decimal

from mechanism.errors import FieldError
from mechanism.payment import ExactPaymentFunction

#: Digits of the arithmetic: micro-credits of a budget up to 10^20 credits, with ten to spare.
PRECISION = 36


def budget_bound(
    payment: ExactPaymentFunction, Q: Decimal, upsilon: Decimal, participants: int, rounds: int
) -> Decimal:
    """N * T * f(Q / Upsilon), credits, at most one unit of the 36th digit too high.

    Raises:
        FieldError: a coefficient or a count out of range.
    """
    for name, value in (("Q", Q), ("upsilon", upsilon)):
        if not isinstance(value, Decimal) or not value.is_finite() or value <= 0:
            raise FieldError(name, str(value), "a decimal above 0")
    for name, count in (("participants", participants), ("rounds", rounds)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise FieldError(name, count, "a whole number of at least 1")
    context = Context(prec=PRECISION, rounding=ROUND_CEILING)
    each = payment.exact(context.divide(Q, upsilon), context)
    # ln and power round half-even whatever the context says: one step up makes the bound sure.
    return context.multiply(context.next_plus(each) if each else each, Decimal(participants * rounds))
