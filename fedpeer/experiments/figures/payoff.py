"""Figure 7: the learner's payoff over Q, with the best Q marked, for the log and the linear payment.

By calculation, against the least and the greatest equilibrium. Ours; the paper states the learner's problem and
that a convex program solves it.
"""

from fedpeer.experiments.cells import Cell
from fedpeer.experiments.figures.figure import Figure, Finding, Results
from fedpeer.experiments.game import population_game
from fedpeer.experiments.learner import LEARNER, PAYMENTS, best_offer, offers
from fedpeer.experiments.plots import LINES, FigurePage
from fedpeer.experiments.populations import SHARES
from fedpeer.experiments.settings import Settings
from mechanism.game import Side
from mechanism.learner import Offer, offer

SIDES: tuple[Side, ...] = ("least", "greatest")

#: How far below the best coefficient one more is tried.
BELOW = 1e-4


class PayoffFigure(Figure):
    """Payoff over the payment coefficient; the same for every data set."""

    number, name, title = 7, "payoff", "The learner's payoff over Q"

    def cells(self, settings: Settings) -> list[Cell]:
        del settings  # calculated when drawn: seconds
        return []

    def draw(self, settings: Settings, results: Results, page: FigurePage) -> list[Finding]:
        del settings, results
        page.table(
            ("payment", "equilibrium", "Q", "payoff", "feasible", "best", "mean_degree", "paid_a_round",
             "least_utility"),
            [
                (name, side, o.Q, o.payoff, o.feasible, o is best_offer(name, side),
                 o.profile.degree.mean(), o.profile.payment.sum(), o.profile.utility.min())
                for name in PAYMENTS for side in SIDES for o in with_jump(name, side)
            ],
        )  # fmt: skip
        with page.panels(len(PAYMENTS)) as axes:
            for panel, name in zip(axes, PAYMENTS, strict=True):
                for line, side in zip(LINES, SIDES, strict=False):
                    tried = with_jump(name, side)
                    points = [o.Q for o in tried], [o.payoff for o in tried]
                    panel.plot(*points, markersize=2, label=f"at the {side} equilibrium", **line.style)
                    best = best_offer(name, side)
                    panel.plot(
                        best.Q,
                        best.payoff,
                        "*",
                        ms=11,
                        mfc="white",
                        c=line.colour,
                        label=f"best Q = {best.Q:.4g}",
                    )
                top = max(o.payoff for side in SIDES for o in offers(name, side))
                panel.set(
                    xscale="log", xlim=(50, 5_000), ylim=(-0.35 * abs(top), 1.25 * top),
                    xlabel="payment coefficient $Q$", title=f"{name} payment",
                )  # fmt: skip
                panel.legend(loc="lower left")
            axes[0].set_ylabel(f"payoff (credits, T = {LEARNER.rounds} rounds)")
        return [_finding(name) for name in PAYMENTS]


def with_jump(payment: str, side: Side) -> list[Offer]:
    """What the search tried, and one offer just below the best: where the payoff jumps, the curve shows it."""
    tried = list(offers(payment, side))
    best = best_offer(payment, side)
    below = population_game(SHARES, PAYMENTS[payment], best.Q * (1 - BELOW))
    tried.append(offer(below, LEARNER, side))
    return sorted(tried, key=lambda one: one.Q)


def _finding(name: str) -> Finding:
    best = best_offer(name)
    worst = best_offer(name, "greatest")
    tried = [o for o in offers(name) if o.feasible]
    where = (
        "on the participation boundary, the least Q at which everyone still makes the effort"
        if best.on_boundary
        else "above the one at which effort sets in, where more effort is no longer worth its price"
    )
    return Finding(
        claim="The learner's problem has a best Q.",
        found=(
            f"{name} payment: best Q = {best.Q:.4g} with a payoff of {best.payoff:.1f} credits, {where}; mean degree "
            f"{best.profile.degree.mean():.3f}, {best.profile.payment.sum():.2f} credits a round; against the "
            f"greatest equilibrium Q = {worst.Q:.4g} and {worst.payoff:.1f} credits"
        ),
        holds=bool(best.payoff >= max(o.payoff for o in tried)),
        numbers={f"Q_{name}": best.Q, f"payoff_{name}": best.payoff},
    )
