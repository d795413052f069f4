"""What an arena found: fights and honest rounds, their means and intervals, a JSON object and a heat map."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from fedpeer.experiments.arena.setting import ArenaSetting
from mechanism.settlement import MICRO, Assessment

#: Resamples of the bootstrap, and the share of them inside the interval.
_RESAMPLES, _CONFIDENCE = 4_000, 0.95

#: Others that have one of a participant's samples, in the mean, from which it is linked to them for a reason.
_IN_COMMON = 0.05


@dataclass(frozen=True)
class Fight:
    """One attack by one attacker in one round under one rule; utilities in credits, per attacking head."""

    rule: str
    attack: str
    seed: int
    round: int
    attacker: str
    utility: float
    honest: float
    caught: bool
    accuracy_lost: float


@dataclass(frozen=True)
class HonestRound:
    """One honest participant's assessment in one round.

    Attributes:
        degree: that its counts give.
        verified, lower, upper: degree and prediction interval; None where it was not scored.
        failed: the screens that it did not pass: one that fails any is refused, cut, or accused of a false claim.
        holders: how many it is taken to have one of its samples, in the mean; had: how many do.
    """

    rule: str
    seed: int
    round: int
    degree: float
    verified: float | None
    lower: float | None
    upper: float | None
    failed: tuple[str, ...]
    holders: float
    had: float

    @property
    def hurt(self) -> tuple[str, ...]:
        """The screens that it fails for nothing: *overlap* of samples that others do have is none."""
        return tuple(screen for screen in self.failed if screen != "overlap" or self.had < 1 + _IN_COMMON)

    @classmethod
    def of(
        cls, rule: str, seed: int, round_: int, degree: float, had: float, assessment: Assessment
    ) -> "HonestRound":
        micro = (assessment.verified_micro, assessment.lower_micro, assessment.upper_micro)
        verified, lower, upper = (None if value is None else value / MICRO for value in micro)
        failed = tuple(v.screen for v in assessment.verdicts if not v.passed)
        holders = assessment.holders_micro / MICRO
        return cls(rule, seed, round_, degree, verified, lower, upper, failed, holders, had)


@dataclass
class ArenaResult:
    """Everything that was observed, and its summary."""

    setting: ArenaSetting
    fights: list[Fight] = field(default_factory=list)
    honest: list[HonestRound] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """The observations as JSON has them."""
        return {"fights": [asdict(f) for f in self.fights], "honest": [asdict(h) for h in self.honest]}

    @classmethod
    def from_records(cls, setting: ArenaSetting, records: Iterable[dict[str, Any]]) -> "ArenaResult":
        """The observations of several records together."""
        result = cls(setting)
        for record in records:
            result.fights += [Fight(**f) for f in record["fights"]]
            result.honest += [HonestRound(**{**h, "failed": tuple(h["failed"])}) for h in record["honest"]]
        return result

    def summary(self) -> dict[str, Any]:
        """The JSON object: {"rules": {R: {"attacks": {A: {...}}, "honest_refused", "honest_failed", "degree"}}, ...}.

        `honest_refused` is the share of honest assessments that a screen hurts, `honest_failed` how many each screen
        hurts, `honest` how many there are. `honest_linked` is of those who are linked for samples that they do have in
        common: how many, and the means of what they are taken to have and of what they have.
        """
        return {
            "dataset": self.setting.dataset,
            "participants": self.setting.participants,
            "attackers": self.setting.attackers,
            "rounds": self.setting.rounds,
            "seeds": list(self.setting.seeds),
            "shadows": self.setting.shadows,
            "rules": {rule: self._rule(rule) for rule in self.setting.rules},
        }

    def attack(self, rule: str, attack: str) -> dict[str, Any] | None:
        """Means over seeds, attackers and rounds; None where the attack never took place.

        The interval is a percentile bootstrap over (seed, attacker): rounds of one attacker are not independent.
        """
        fights = [f for f in self.fights if f.rule == rule and f.attack == attack]
        if not fights:
            return None
        units: dict[tuple[int, str], list[float]] = defaultdict(list)
        for fight in fights:
            units[fight.seed, fight.attacker].append(fight.utility - fight.honest)
        advantages = np.array([np.mean(values) for values in units.values()])
        return {
            "attacker": _rounded(np.mean([f.utility for f in fights])),
            "honest": _rounded(np.mean([f.honest for f in fights])),
            "advantage": _rounded(advantages.mean()),
            "ci": [_rounded(x) for x in bootstrap_interval(advantages)],
            "caught": _rounded(np.mean([f.caught for f in fights])),
            "accuracy_lost": _rounded(np.mean([f.accuracy_lost for f in fights])),
            "units": len(advantages),
        }

    def _rule(self, rule: str) -> dict[str, Any]:
        attacks = {name: self.attack(rule, name) for name in self.setting.attacks}
        rounds = [h for h in self.honest if h.rule == rule]
        found: dict[str, Any] = {
            "attacks": {name: values for name, values in attacks.items() if values is not None},
            "honest": len(rounds),
            "honest_refused": _rounded(np.mean([bool(h.hurt) for h in rounds])) if rounds else None,
            "honest_failed": dict(sorted(Counter(screen for h in rounds for screen in h.hurt).items())),
            "honest_linked": _linked(rounds),
        }
        if rule == "verified":
            found["degree"] = degree_figures(rounds)
            found["degree_by_round"] = {
                str(r): degree_figures([h for h in rounds if h.round == r])
                for r in sorted({h.round for h in rounds})
            }
        return found

    def heat_map(self, path: Path) -> None:
        """Advantage of every attack under every rule, as a picture; numbers in the cells, readable in grey."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        rules, attacks = self.setting.rules, self.setting.attacks
        cells = [[self.attack(rule, attack) for rule in rules] for attack in attacks]
        values = np.array([[np.nan if cell is None else cell["advantage"] for cell in row] for row in cells])
        figure = Figure(figsize=(2.2 + 1.15 * len(rules), 1.6 + 0.28 * len(attacks)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        reach = max(1e-6, float(np.nanmax(np.abs(values))))
        image = axes.imshow(values, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
        axes.set_xticks(range(len(rules)), [r.replace("_", "\n") for r in rules])
        axes.set_yticks(range(len(attacks)), list(attacks))
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                axes.text(
                    j, i, f"{value:+.2f}", ha="center", va="center", fontsize=7,
                    color="white" if abs(value) > 0.6 * reach else "black",
                    weight="bold" if value > 0 else "normal",
                )  # fmt: skip
        axes.set_xlabel("payment rule")
        axes.set_title(
            f"Advantage of an attack over honesty, credits a round ({self.setting.dataset})", fontsize=9
        )
        figure.colorbar(image, ax=axes, label="credits a round")
        figure.savefig(path, dpi=150)


def _linked(rounds: Sequence[HonestRound]) -> dict[str, Any]:
    """Of those who are linked for a reason: how many, and the holders of their samples as settled and in truth."""
    linked = [h for h in rounds if h.failed != h.hurt]
    if not linked:
        return {"n": 0, "holders": None, "had": None}
    holders, had = (np.mean([getattr(h, name) for h in linked]) for name in ("holders", "had"))
    return {"n": len(linked), "holders": _rounded(holders), "had": _rounded(had)}


def degree_figures(rounds: Sequence[HonestRound]) -> dict[str, Any]:
    """Mean error, rank correlation and interval coverage of verified degrees, over those that were scored."""
    scored = [(h.degree, h.verified, h.lower, h.upper) for h in rounds if h.verified is not None]
    if len(scored) < 3:
        return {"mae": None, "rank": None, "coverage": None, "n": len(scored)}
    true, measured, lower, upper = np.array(scored, dtype=np.float64).T
    return {
        "mae": _rounded(np.abs(measured - true).mean()),
        "rank": _rounded(spearmanr(measured, true).statistic),
        "coverage": _rounded(((lower <= true) & (true <= upper)).mean()),
        "n": len(scored),
    }


def bootstrap_interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Percentile bootstrap of the mean; always the same resamples for the same number of values."""
    generator = np.random.default_rng(len(values))
    means = values[generator.integers(len(values), size=(_RESAMPLES, len(values)))].mean(axis=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _rounded(value: Any) -> float:
    return round(float(value), 6) + 0.0
