"""Secrets of tasks: each its own, and what the log needs to be different is different."""

from itertools import product

from coordinator.derivation import chain_secret, evidence_seed, task_root
from mechanism.peers import round_seed, seed_commitment

ROUNDS = 5


def test_no_two_tasks_have_a_seed_in_common_whatever_seed_an_operator_sets() -> None:
    """A verifier refuses a log in which a commitment or a seed stands twice."""
    seen: set[bytes] = set()
    for task, seed in product(("a", "b", "a/1", "1"), (None, None, 0, 1, 10)):
        secret = chain_secret(task_root(task, seed))
        values = {
            seed_commitment(secret, ROUNDS),
            *(round_seed(secret, ROUNDS, r + 1) for r in range(ROUNDS)),
        }
        assert len(values) == ROUNDS + 1
        assert seen.isdisjoint(values)
        seen |= values


def test_no_two_tasks_have_shadow_models_in_common() -> None:
    seeds = {evidence_seed(task_root(task, 1)) for task in ("a", "b", "c")}
    assert len(seeds) == 3
