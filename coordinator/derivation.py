"""Secrets of a task, all derived from one root, so that one value is backed up and one seed reproduces a task.

    derived = HMAC-SHA-256(root, label)

The root is random, or derived from the operator's `seed`. Only the chain secret is ever revealed (by the last
round's seed), and it tells nothing of the root or of the others.
"""

import hashlib
import hmac
import secrets
from functools import lru_cache

from mechanism.statements import NONCE_BYTES

_ROOT = b"fedpeer task root v1"


def task_root(task_id: str, seed: int | None) -> bytes:
    """32 secret bytes; reproducible where a seed is given, and then known to all who know the seed."""
    if seed is None:
        return secrets.token_bytes(32)
    return hashlib.sha256(_ROOT + f"{seed}/{task_id}".encode()).digest()


def chain_secret(root: bytes) -> bytes:
    """s of `mechanism.peers`: the end of the hash chain of round seeds."""
    return _derive(root, "chain")


def validation_salt(root: bytes) -> bytes:
    """Salt of the commitment to D_c."""
    return _derive(root, "validation")


def evidence_seed(root: bytes) -> int:
    """Seed of the shadow models, 63 bits."""
    return int.from_bytes(_derive(root, "evidence")[:8], "big") >> 1


def initial_seed(root: bytes) -> int:
    """Seed of the initial model, 31 bits: it becomes public with the model."""
    return int.from_bytes(_derive(root, "initial")[:4], "big") >> 1


@lru_cache(maxsize=4096)
def nonce(root: bytes, participant_id: str) -> bytes:
    """What a participant signs into its statements in this task, in place of a clock."""
    return _derive(root, "nonce/" + participant_id)[:NONCE_BYTES]


def organisation_mark(root: bytes, organisation: str) -> bytes:
    """What stands for an organisation in the claims of this task: nobody without the root can undo it, or say which
    mark it has in another task."""
    return _derive(root, "organisation/" + organisation)


def pseudonym(root: bytes, participant_id: str) -> str:
    """What a participant is called where its name is not shown: nobody without the root can undo it."""
    return _derive(root, "pseudonym/" + participant_id)[:4].hex()


def _derive(root: bytes, label: str) -> bytes:
    return hmac.digest(root, b"fedpeer v1 " + label.encode(), "sha256")
