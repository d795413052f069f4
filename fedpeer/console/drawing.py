"""Pictures as inline SVG: what a page draws from the figures in the table beside it. Colours are the style sheet's.

Everything fits 360 units across, a phone's width, and grows with the page. Texts of others are escaped.
"""

from collections.abc import Sequence

from markupsafe import Markup, escape

from fedpeer.console.words import STATES, rounded_credits

WIDTH = 360

#: Places of the states in the picture of a task: column and row.
_PLACES = {
    "OPEN": (0, 0), "EFFORT": (1, 0), "SELECTED": (2, 0), "TRAINING": (3, 0),
    "CANCELLED": (0, 1), "CLOSED": (1, 1), "SETTLED": (2, 1), "SCORED": (3, 1),
}  # fmt: skip
_BOX, _HIGH, _STEP, _ROW = 78, 30, 94, 70

#: Lines between boxes.
_ARROWS = (
    "M78 15h14", "M172 15h14", "M266 15h14", "M321 30v38", "M282 85h-14", "M188 85h-14",
    "M227 70L284 32",
)  # fmt: skip


def picture(title: str, described: str, height: int, parts: Sequence[str], kind: str) -> Markup:
    """One picture with its title and its description for those who cannot see it."""
    return Markup(
        '<svg class="drawing {}" viewBox="0 0 {} {}" role="img" aria-label="{}">'
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L6 3L0 6z" class="tip"/></marker></defs>{}</svg>'
    ).format(kind, WIDTH, height, f"{title}: {described}", Markup("".join(parts)))


def lifecycle(state: str, round_: int, rounds: int) -> Markup:
    """The states of a task as the README draws them, with where it stands."""
    parts = [f'<path class="arrow" d="{line}" marker-end="url(#tip)"/>' for line in _ARROWS]
    parts.append('<text class="note" x="236" y="50" text-anchor="end">next round</text>')
    for name, (column, row) in _PLACES.items():
        x, y = column * _STEP, row * _ROW
        classes = "state" + (" here" if name == state else "") + (" aside" if name == "CANCELLED" else "")
        parts.append(
            f'<g class="{classes}"><title>{escape(STATES[name])}</title>'
            f'<rect x="{x}.5" y="{y}.5" width="{_BOX - 1}" height="{_HIGH - 1}" rx="4"/>'
            f'<text x="{x + _BOX / 2}" y="{y + 19}" text-anchor="middle">{name}</text></g>'
        )
    of = f", round {round_} of {rounds}" if round_ else ""
    return picture("The task's states", f"now {state}{of}, {STATES.get(state, '')}", 101, parts, "lifecycle")


def line(points: Sequence[tuple[int, float]], title: str, across: str, up: str) -> Markup:
    """A figure from 0 to 1 by round.

    Args:
        points: round and figure, in order of rounds; at least one.
        across, up: the axes' labels.
    """
    left, top, wide, high = 52, 8, WIDTH - 64, 120
    first, last = points[0][0], points[-1][0]

    def x(value: float) -> float:
        return left + (wide / 2 if last == first else wide * (value - first) / (last - first))

    def y(value: float) -> float:
        return top + high * (1 - min(1.0, max(0.0, value)))

    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{wide}"/>')
        parts.append(
            f'<text class="tick" x="{left - 5}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick:.0%}</text>'
        )
    ticks = sorted({points[round(i * (len(points) - 1) / 5)][0] for i in range(6)})
    parts += [
        f'<text class="tick" x="{x(tick):.1f}" y="{top + high + 14}" text-anchor="middle">{tick}</text>'
        for tick in ticks
    ]
    parts.append(f'<polyline class="line" points="{" ".join(f"{x(r):.1f},{y(v):.1f}" for r, v in points)}"/>')
    if len(points) <= 40:
        parts += [
            f'<circle class="dot" cx="{x(r):.1f}" cy="{y(v):.1f}" r="3"><title>{r}: {v:.1%}</title></circle>'
            for r, v in points
        ]
    middle = left + wide / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{top + high + 28}" text-anchor="middle">{escape(across)}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(9 {top + high / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(up)}</text>"
    )
    described = f"{up} {points[-1][1]:.1%} at {across} {last}, {points[0][1]:.1%} at {first}"
    return picture(title, described, top + high + 34, parts, "chart")


def stacked(amounts: Sequence[tuple[str, int]], title: str) -> Markup:
    """Parts of a whole, micro-credits, as one bar with a legend."""
    whole = sum(micro for _, micro in amounts) or 1
    parts, start = [], 0.0
    for number, (name, micro) in enumerate(amounts):
        wide = WIDTH * micro / whole
        parts.append(
            f'<rect class="part p{number}" x="{start:.2f}" y="0" width="{wide:.2f}" height="22">'
            f"<title>{escape(name)}: {rounded_credits(micro)}</title></rect>"
        )
        y = 40 + 16 * number
        parts.append(f'<rect class="part p{number}" x="0" y="{y - 9}" width="10" height="10"/>')
        parts.append(
            f'<text class="tick" x="16" y="{y}">{escape(name)}: {rounded_credits(micro)} credits, '
            f"{micro / whole:.1%}</text>"
        )
        start += wide
    described = ", ".join(f"{name} {rounded_credits(micro)} credits" for name, micro in amounts)
    return picture(title, described, 34 + 16 * len(amounts), parts, "chart")


def bars(rows: Sequence[tuple[str, int, int | None]], title: str) -> Markup:
    """Amounts by name, micro-credits, each with a mark at what was expected.

    Args:
        rows: name, amount, expected, None where there is no such thing; at least one.
    """
    most = max(max(micro, expected or 0) for _, micro, expected in rows) or 1
    left, wide, high = 112, WIDTH - 112 - 58, 14
    parts = []
    for number, (name, micro, expected) in enumerate(rows):
        y, length = 4 + number * (high + 5), wide * micro / most
        mark = left + (length if expected is None else wide * expected / most)
        said = "" if expected is None else f", expected {rounded_credits(expected, 6)}"
        drawn = "" if expected is None else f'<path class="mark" d="M{mark:.2f} {y - 2}v{high + 4}"/>'
        shown = name if len(name) <= 18 else f"{name[:17]}…"
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 11}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="fall end" x="{left}" y="{y}" width="{length:.2f}" height="{high}">'
            f"<title>{escape(name)}: {rounded_credits(micro, 6)}{said}</title></rect>{drawn}"
            f'<text class="tick" x="{max(left + length, mark) + 4:.2f}" y="{y + 11}">{rounded_credits(micro)}</text>'
        )
    described = ", ".join(f"{name} {rounded_credits(micro)} credits" for name, micro, _ in rows)
    return picture(title, described, 6 + len(rows) * (high + 5), parts, "chart")


def waterfall(steps: Sequence[tuple[str, int]], title: str, besides: tuple[str, int] | None = None) -> Markup:
    """How an amount comes about: what is left after each step, micro-credits, the first the most that there could be.

    Each bar runs from what was left before the step to what is left after it; the first and the last from nothing.

    Args:
        besides: what would have been, under the last bar.
    """
    most = max(micro for _, micro in [*steps, *([besides] if besides else [])]) or 1
    left, wide, high = 112, WIDTH - 112 - 58, 20
    parts, before = [], 0
    for number, (name, micro) in enumerate(steps):
        end = number in (0, len(steps) - 1)
        low, top = (0, micro) if end else sorted((before, micro))
        x, length = left + wide * low / most, max(1.0, wide * (top - low) / most)
        kind = "end" if end else "down" if micro <= before else "up"
        y = 4 + number * (high + 6)
        sign = "" if rounded_credits(micro - before) == rounded_credits(0) else "+" if micro > before else "−"
        change = rounded_credits(micro) if end else f"{sign}{rounded_credits(abs(micro - before))}"
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
        )
        parts.append(
            f'<rect class="fall {kind}" x="{x:.2f}" y="{y}" width="{length:.2f}" height="{high}">'
            f"<title>{escape(name)}: {rounded_credits(micro, 6)} credits</title></rect>"
        )
        parts.append(f'<text class="tick" x="{x + length + 4:.2f}" y="{y + 14}">{change}</text>')
        before = micro
    down = 4 + len(steps) * (high + 6)
    if besides is not None:
        name, micro = besides
        length = wide * micro / most
        parts.append(
            f'<text class="axis" x="{left - 6}" y="{down + 8}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="part p1" x="{left}" y="{down}" width="{length:.2f}" height="8">'
            f"<title>{escape(name)}: {rounded_credits(micro, 6)} credits</title></rect>"
            f'<text class="axis" x="{left + length + 4:.2f}" y="{down + 8}">{rounded_credits(micro)}</text>'
        )
        steps, down = [*steps, besides], down + 14
    described = ", ".join(f"{name} {rounded_credits(micro)} credits" for name, micro in steps)
    return picture(title, described, down, parts, "chart")
