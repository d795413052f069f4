"""`fedpeer plan`: efforts, equilibria and the best payment coefficient for a population."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from fedpeer.cli.errors import CommandError
from fedpeer.text_files import TextFileError, naming, read_text, read_toml
from mechanism.averse_equilibrium import averse_equilibrium
from mechanism.equilibrium import SIDES, Equilibrium, Solution, solve
from mechanism.errors import MISSING, FieldError, kind_of
from mechanism.game import Game, Side
from mechanism.learner import Offer, max_offer, offer, payoff_curve
from mechanism.mean_field import PeerSums
from mechanism.payment import Log
from mechanism.population import PlanInput, Risk, plan_input
from mechanism.regret import deviations
from mechanism.selection import Selection, select
from mechanism.settlement import MICRO, max_payment_micro
from mechanism.terms import MIN_QUORUM

#: What is known of a Q that was chosen.
BASIS = "the best Q is the best of {} coefficients that were solved; that none between them is better is not proved"
#: Rows of the table before it is cut; `--json` has them all.
MAX_ROWS = 40
#: Participants whose utility curves are drawn, evenly chosen by their degree.
CURVES = 4
#: Effort up to which somebody is not said to make one.
NO_EFFORT = 1e-6
#: Points of a drawn curve.
POINTS = 241
#: A Q stands on a cliff where so much less of it loses so large a share of the payoff: an estimate of a cost or of a
#: start that is off by as little decides between the two.
MARGIN, LOSS = 0.01, 0.05
#: Participants up to which that is looked for: each look solves the game once more.
MAX_LOOKED = 10_000


def plan(
    file: Annotated[
        Path,
        typer.Argument(help="Population and terms, TOML or JSON; docs/plan.md has every key and an example."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw utility curves and the payoff over Q into this folder.")
    ] = None,
    budget: Annotated[bool, typer.Option("--budget", help="The most that the task can cost.")] = False,
    choose: Annotated[
        bool, typer.Option("--select", help="Whom to select, and what each would be paid.")
    ] = False,
) -> None:
    """Both extremal equilibria, what each participant does, earns and pays for, and the learner's best Q."""
    document = _document(file)
    with naming(file):
        given = plan_input(document)
    notes: list[str] = []
    status = Console(stderr=True, quiet=as_json).status
    with status("solving"):
        curve, robust = _curves(given)
        Q = given.Q if given.Q is not None else max_offer(curve).Q
        game = _game(given, Q)
        solution = solve(game)
    if isinstance(given.payment, Log) and given.bound.upsilon >= Q:
        notes.append(
            f"Q = {Q:g} is at most upsilon = {given.bound.upsilon:g}: a clipped log pays nobody anything"
        )
    result = _result(given, game, solution, robust)
    result["search"] = _search(curve, robust)
    with status("looking for cliffs"):
        result["safe"] = None if robust is None else _safe(given, robust)
        if (lost := _lost_below(given, Q, "least")) is not None:
            notes.append(
                f"Q = {Q:.10g} stands on a cliff: with {MARGIN:.0%} less the payoff in the least equilibrium falls "
                f"from {lost[0]:.6g} to {lost[1]:.6g}, so a small error in what you expect costs as much"
            )
    notes += _unproved("least", solution.least) + _unproved("greatest", solution.greatest)
    if robust is not None:
        notes += _unproved("greatest, at the best Q against it,", robust.profile)
    if given.risk is not None:
        with status("weighing risk"):
            result["risk"] = _risk(given.risk, game)
    selection = None
    if choose:
        if given.learner is None:
            raise FieldError(
                "learner", MISSING, "a table with omega, gamma and reward: a selection needs a payoff"
            )
        with status("selecting"):
            selection = select(game, given.learner, min(MIN_QUORUM, game.size), fixed_q=given.Q is not None)
        result["selection"] = _selection(selection)
    if budget:
        result["budget"] = _budget(given, game, solution.least)
    if plot is not None:
        with status("drawing"):
            result["plots"] = _plots(plot, given, game, solution, curve)
    result["notes"] = notes
    if as_json:
        typer.echo(json.dumps(result, allow_nan=False, default=np.ndarray.tolist))
    else:
        _print(result, solution, game, given)


def _document(file: Path) -> dict[str, Any]:
    toml = file.suffix.lower() == ".toml"
    try:
        loaded = read_toml(file) if toml else json.loads(read_text(file), object_pairs_hook=_unrepeated)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}; give a TOML or JSON file") from None
    except TextFileError as error:
        raise CommandError(f"{file} cannot be used: {error}; give a TOML or JSON file") from None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file} is not valid JSON (name a TOML file *.toml): {error}") from None
    if not isinstance(loaded, dict):
        raise CommandError(f"{file} holds {kind_of(loaded)}; expected one object with phi, upsilon, ...")
    return loaded


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, which may name a key twice; TOML may not."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return found


def _game(given: PlanInput, Q: float) -> Game:
    return Game(given.payment, Q, given.bound, given.population.effort, given.population.cost, given.rule)


def _curves(given: PlanInput) -> tuple[list[Offer], Offer | None]:
    """The offers over Q against the least equilibrium, and the best against the greatest; none where Q is given."""
    if given.Q is not None:
        return [], None
    if given.learner is None:
        raise FieldError("learner", MISSING, "a table with omega, gamma and reward, or a value for Q")
    game = _game(given, given.bound.upsilon)
    return (
        payoff_curve(game, given.learner, "least"),
        max_offer(payoff_curve(game, given.learner, "greatest")),
    )


def _result(given: PlanInput, game: Game, solution: Solution, robust: Offer | None) -> dict[str, Any]:
    least = _profile(solution.least, given)
    result: dict[str, Any] = {
        "least": least,
        "greatest": _profile(solution.greatest, given),
        "unique": solution.unique,
        "Q": game.Q,
        **{key: least[key] for key in ("payments", "costs", "utilities", "payoff")},
        "slack": least["utilities"],
    }
    if robust is not None:
        result["robust"] = {"Q": robust.Q, "payoff": robust.payoff}
    return result


def _lost_below(given: PlanInput, Q: float, side: Side) -> tuple[float, float] | None:
    """The learner's payoff at Q and at a little less, where the second is much lower; None where it is not."""
    if given.learner is None or given.population.size > MAX_LOOKED:
        return None
    here, below = (offer(_game(given, q), given.learner, side).payoff for q in (Q, Q * (1 - MARGIN)))
    return (here, below) if below < here - LOSS * abs(here) else None


def _safe(given: PlanInput, robust: Offer) -> dict[str, Any]:
    """The Q to offer where nothing is known of which equilibrium is played: the best against the greatest, moved off a
    cliff.

    Its payoff is the one in the greatest equilibrium, the worst there is.
    """
    if _lost_below(given, robust.Q, "greatest") is None:
        return {"Q": robust.Q, "payoff": robust.payoff}
    assert given.learner is not None
    moved = offer(_game(given, robust.Q / (1 - MARGIN)), given.learner, "greatest")
    return {"Q": moved.Q, "payoff": moved.payoff}


def _search(curve: list[Offer], robust: Offer | None) -> dict[str, Any] | None:
    """How the best Q was found, and that this is not a proof; None where Q was given."""
    if robust is None:
        return None
    return {"evaluated": len(curve), "proved": False, "basis": BASIS.format(len(curve))}


def _unproved(name: str, profile: Equilibrium) -> list[str]:
    """What is not proved of a profile that is called an equilibrium."""
    if profile.certified:
        return []
    regret = profile.certificate.max_regret
    gains = (
        f"nobody gains more than {regret:.3g} by leaving it"
        if np.isfinite(regret)
        else "no bound on what leaving it gains"
    )
    why = "" if profile.converged else "; the iteration did not come to rest"
    return [
        f"the {name} equilibrium is not proved to be one: {gains}, and no equilibrium is shown to lie near it{why}"
    ]


def _profile(profile: Equilibrium, given: PlanInput) -> dict[str, Any]:
    certificate = profile.certificate
    return {
        **_values(profile),
        "max_regret": certificate.max_regret if np.isfinite(certificate.max_regret) else None,
        "certified": profile.certified,
        "iterations": profile.iterations,
        "converged": profile.converged,
        "within": profile.within if np.isfinite(profile.within) else None,
        "status": certificate.status.value,
        "basis": certificate.basis,
        "payoff": None if given.learner is None else given.learner.payoff(profile),
    }


def _values(profile: Equilibrium) -> dict[str, Any]:
    """What each participant does, is paid and spends."""
    return {
        "delta": profile.degree,
        "effort": profile.effort,
        "payments": profile.payment,
        "costs": profile.cost,
        "utilities": profile.utility,
    }


def _risk(risk: Risk, game: Game) -> dict[str, Any]:
    """Both equilibria of participants who weigh risk, by the number of peers that are drawn."""
    found: list[dict[str, Any]] = []
    for peers in risk.peers:
        drawn = game.size - 1 if peers is None else min(peers, game.size - 1)
        for side in SIDES:
            profile = averse_equilibrium(game, side, drawn, risk.attitude)
            found.append(
                {
                    "peers": "all" if drawn == game.size - 1 else drawn,
                    "side": side,
                    "delta": profile.degree,
                    "effort": profile.effort,
                    "payments": profile.payment,
                    "costs": profile.cost,
                    "equivalents": profile.equivalent,
                    "working": int((profile.effort > NO_EFFORT).sum()),
                    "max_regret": profile.max_regret if np.isfinite(profile.max_regret) else None,
                    "extremal": profile.extremal,
                    "converged": profile.converged,
                }
            )
    return {"attitude": str(risk.attitude), "equilibria": found}


def _print_risk(console: Console, risk: dict[str, Any], size: int) -> None:
    table = Table(
        "peers drawn", "equilibrium", "make an effort", "mean degree", "mean payment", "mean equivalent"
    )
    for row in risk["equilibria"]:
        known = "" if row["extremal"] else ", not proved" if row["converged"] else ", NOT converged"
        table.add_row(
            str(row["peers"]),
            row["side"] + known,
            f"{row['working']} of {size}",
            *(f"{row[key].mean():.6f}" for key in ("delta", "payments", "equivalents")),
        )
    console.print(
        f"with risk weighed by everybody, {risk['attitude']}: what a round is worth for sure, less its cost, is the "
        "equivalent"
    )
    console.print(table)


def _selection(selection: Selection) -> dict[str, Any]:
    return {
        "selected": selection.selected,
        "required": selection.required,
        "threshold": selection.threshold,
        "Q": selection.offer.Q,
        **_values(selection.offer.profile),
        "payoff": selection.offer.payoff,
        "payoffs": {str(size): payoff for size, payoff in selection.payoffs.items() if np.isfinite(payoff)},
    }


def _budget(given: PlanInput, game: Game, least: Equilibrium) -> dict[str, Any]:
    rounds = given.learner.rounds if given.learner is not None else 1
    most = max_payment_micro(Decimal(game.Q), Decimal(given.bound.upsilon), given.payment.exact)
    credits_, micro = divmod(most * game.size * rounds, MICRO)
    return {
        "bound": f"{credits_}.{micro:06d}",
        "expected": float(rounds * least.payment.sum()),
        "rounds": rounds,
    }


def _print(result: dict[str, Any], solution: Solution, game: Game, given: PlanInput) -> None:
    console = Console()
    if result["safe"] is not None:
        safe = result["safe"]
        console.print(
            f"safe: offer Q = {safe['Q']:.10g}. The payoff is {safe['payoff']:.10g} even in the greatest equilibrium, "
            "the one with the least effort"
        )
    least = solution.least
    table = Table("id", "effort", "degree", "payment", "cost", "utility", "at greatest")
    for k in range(min(game.size, MAX_ROWS)):
        table.add_row(
            str(k),
            *(f"{v[k]:.6f}" for v in (least.effort, least.degree, least.payment, least.cost, least.utility)),
            f"{solution.greatest.degree[k]:.6f}",
        )
    console.print(
        f"Q = {game.Q:.10g}" + ("" if given.Q is not None else " (best, if the least equilibrium is played)")
    )
    console.print(table)
    if game.size > MAX_ROWS:
        console.print(f"... and {game.size - MAX_ROWS} more; --json has all of them")
    for name, profile in (("least", solution.least), ("greatest", solution.greatest)):
        certificate = profile.certificate
        console.print(
            f"{name} {'equilibrium' if profile.certified else 'profile, NOT proved to be an equilibrium'}: no one "
            f"gains more than {certificate.max_regret:.3g} by deviating ({certificate.status.value}), "
            f"{profile.iterations} sweeps"
            + ("" if profile.converged else ", NOT converged")
            + (f", payoff {result[name]['payoff']:.10g}" if given.learner is not None else "")
        )
    console.print(
        "the equilibrium is unique"
        if solution.unique
        else "the equilibrium is not unique, or not known to be"
    )
    if "robust" in result:
        robust = result["robust"]
        console.print(
            f"against the greatest equilibrium: best Q = {robust['Q']:.10g}, payoff {robust['payoff']:.10g}"
        )
    if result["search"] is not None:
        console.print(result["search"]["basis"])
    if "risk" in result:
        _print_risk(console, result["risk"], game.size)
    if "budget" in result:
        amounts = result["budget"]
        console.print(
            f"budget: at most {amounts['bound']} over {amounts['rounds']} rounds; expected {amounts['expected']:.6f}"
        )
    if "selection" in result:
        _print_selection(console, result["selection"])
    for path in result.get("plots", []):
        console.print(f"drawn: {path}")
    for note in result["notes"]:
        console.print(f"note: {note}")


def _print_selection(console: Console, selection: dict[str, Any]) -> None:
    table = Table("selected", "required Q among all", "effort", "payment", "utility")
    for row, k in enumerate(selection["selected"][:MAX_ROWS]):
        table.add_row(
            str(k),
            f"{selection['required'][k]:.6g}",
            *(f"{selection[key][row]:.6f}" for key in ("effort", "payments", "utilities")),
        )
    console.print(
        f"select {len(selection['selected'])} of {len(selection['required'])}: those who need least, at most "
        f"Q = {selection['threshold']:.6g} while all take part; in the game among the selected alone, "
        f"offered Q = {selection['Q']:.10g}, payoff {selection['payoff']:.10g}"
    )
    console.print(table)


def _plots(folder: Path, given: PlanInput, game: Game, solution: Solution, curve: list[Offer]) -> list[str]:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make the folder {folder}: {error.strerror}") from None
    drawn: list[str] = []

    @contextmanager
    def axes_of(name: str) -> Iterator[Any]:
        figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
        yield axes
        axes.legend()
        figure.savefig(folder / name, dpi=144)
        pyplot.close(figure)
        drawn.append(str(folder / name))

    least = solution.least
    with axes_of("utility.png") as axes:
        for k in np.unique(np.linspace(0, game.size - 1, CURVES).astype(int)):
            degree, utility = utility_curve(game, least.degree, int(k))
            (line,) = axes.plot(degree, utility, label=f"participant {k}")
            axes.plot(least.degree[k], least.utility[k], "o", color=line.get_color())
        axes.set(
            xlabel="degree (lower is more effort)",
            ylabel="utility, credits a round",
            title=f"Q = {game.Q:.6g}",
        )
    if given.learner is not None:
        offers = curve or payoff_curve(game, given.learner, "least")
        best = max_offer(offers)
        with axes_of("payoff.png") as axes:
            points = [one.Q for one in offers], [one.payoff for one in offers]
            axes.plot(*points, ".-", label="least equilibrium")
            axes.axvline(best.Q, linestyle="--", color="gray", label=f"best Q = {best.Q:.6g}")
            axes.set(xscale="log", xlabel="payment coefficient Q", ylabel="learner's payoff, credits")
    return drawn


def utility_curve(game: Game, profile: np.ndarray[Any, Any], k: int) -> tuple[Any, Any]:
    """Degrees of participant `k`'s range and its expected utility there, the others held."""
    degree = np.linspace(game.floor[k], game.start[k], POINTS)
    mine = deviations(game, PeerSums(game.score, np.square(profile)), profile, np.array([k]))
    return degree, mine.utility(np.zeros(POINTS, dtype=np.intp), degree)
