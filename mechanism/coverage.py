"""What of a payment one's data earn: what others have too is paid once, and it takes enough of it.

    w = min(1, x / c)^3 h(M)                      M = mean over k's samples of how many participants have the sample
    h(M) = 1/a - (M - a) / (a (a + 1)),           a = floor(M), M >= 1: the line between 1/a and 1/(a + 1)

x is how many distinct samples k has, over those that the recipe asks for, c the terms' `whole_from`. With phi the
terms' `fee`, a participant of weight w loses phi (1 - w) besides.

**What is had twice is paid once.** Of finite sets D_1 .. D_n, with M_i the mean over D_i of how many of them have a
sample: sum_i |D_i| h(M_i) <= |union|. For n(s) of them have s, so |union| = sum_i sum_{s in D_i} 1 / n(s); h is convex
and h(n) = 1/n at whole n, so that h(M_i) <= mean over D_i of 1 / n(s). It is an equality for two sets. h is the largest
convex function that is 1/n there.

**No split pays.** Let each identity of a group get max(0, w_i F - phi (1 - w_i)) and one honest participant with all of
its data u the same with w = min(1, u / c)^3, u <= 1 in recipes. As min(1, y)^3 <= y, the w_i sum to at most the sum of
(x_i / c) h(M_i), which is at most u / c. Two or more that get something get F u / c - phi (2 - u / c) together at most,
no more than F where

    phi >= F (1 - c) / (2 c - 1),                 c > 1/2        (`least_fee`)

Where u <= c, sum_i w_i <= (u / c)^3, so that no fee is needed. docs/mechanism.md, section 9, has the conditions.

The third power is not needed for this, any of at least 1 does: it makes k equal parts worth about k^-2 together, so
that errors of x do not make parts pay.
"""

from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction
from math import floor

from mechanism.errors import FieldError

#: Sound shadow models of a round from which x is read; of fewer, x is 1 for everybody.
LEAST_SHADOWS = 50

#: Of w in x: what parts of the recipe's samples are worth. At least 1.
POWER = 3


def one_share(holders: Fraction) -> Fraction:
    """h(M), in (0, 1].

    Raises:
        FieldError: M below 1.
    """
    if holders < 1:
        raise FieldError("holders", holders, "at least 1: who has a sample is one of those who have it")
    whole = floor(holders)
    return Fraction(1, whole) - (holders - whole) / (whole * (whole + 1))


def weight(distinct: Fraction, holders: Fraction, whole_from: Fraction) -> Fraction:
    """w, in [0, 1].

    Args:
        distinct: x >= 0.
        holders: M >= 1.
        whole_from: c, in (1/2, 1].

    Raises:
        FieldError: a value out of its range.
    """
    if distinct < 0:
        raise FieldError("distinct", distinct, "at least 0")
    enough = min(Fraction(1), distinct / check_whole_from(whole_from))
    return enough**POWER * one_share(holders)


def check_whole_from(whole_from: Fraction) -> Fraction:
    """c. Raises FieldError where it is not in (1/2, 1]: with less, two halves could be whole."""
    if not Fraction(1, 2) < whole_from <= 1:
        raise FieldError("rule.whole_from", float(whole_from), "above 1/2 and at most 1")
    return whole_from


def least_fee(most: Decimal, whole_from: Decimal) -> Decimal:
    """phi in credits, rounded up to a micro-credit, at which no split of one recipe's samples gains.

    Args:
        most: F, the most that a round pays one participant, credits.
        whole_from: c.
    """
    part = check_whole_from(Fraction(whole_from))
    part = (1 - part) / (2 * part - 1)
    exact = Fraction(most) * part * 10**6
    micro = -floor(-exact)
    return Decimal(micro).scaleb(-6, Context(prec=40, rounding=ROUND_CEILING)).normalize()
