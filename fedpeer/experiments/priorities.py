"""In which order cells are computed: a run that is cut short has the most telling figures.

The first seed of most figures first; then the second seed of what is claimed of every seed; then the number of
classes, which mirrors the shares; then the rest.
"""

#: Rank of each kind of cell among those of one seed, from the first to be computed.
RANKS = {
    "accuracy": 0,
    "incentive": 1,
    "accuracy-one-epoch": 2,
    "gap": 3,
    "gradients": 4,
    "peers": 5,
    "verified": 6,
    "classes": 16,
    "classes-peers": 17,
}

#: Kinds whose every seed counts; of the others a second one is a luxury.
EVERY_SEED = frozenset({"accuracy", "accuracy-one-epoch", "incentive"})


def priority(kind: str, seed: int) -> int:
    """Lower is earlier."""
    late = 100 if seed and kind not in EVERY_SEED else 0
    return late + 10 * seed + RANKS[kind]
