"""The arena: what every attack earns under every payment rule, through the real evidence and settlement.

    setting     data, terms, costs and the honest population at its equilibrium
    attacks     what dishonest participants submit, claim and spend
    rules       assessments as each payment rule sees them
    running     rounds of honest participants, and of one attacker among them
    results     means, bootstrap intervals, the JSON object, the heat map

`run_arena` is the entry; `fedpeer arena` prints what it returns.
"""

from fedpeer.experiments.arena.attacks import ATTACKS, Attack, AttackSubmission, Position, attack_named
from fedpeer.experiments.arena.results import ArenaResult
from fedpeer.experiments.arena.rules import RULES
from fedpeer.experiments.arena.running import run_arena
from fedpeer.experiments.arena.setting import ArenaSetting

__all__ = [
    "ATTACKS",
    "RULES",
    "ArenaResult",
    "ArenaSetting",
    "Attack",
    "AttackSubmission",
    "Position",
    "attack_named",
    "run_arena",
]
