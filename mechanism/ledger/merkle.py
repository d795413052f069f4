"""The Merkle tree of RFC 6962 with the proof verification of RFC 9162.

    MTH({})      = SHA-256()
    MTH({d})     = SHA-256(0x00 || d)
    MTH(D[0:n])  = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n])),    k the largest power of two below n

A perfect subtree over entries [i * 2^h, (i + 1) * 2^h) is called node (h, i). Every root and every proof is a
combination of such nodes, so a reader that can look nodes up (`Nodes`) can compute it with O(log n) of them.

Sources: RFC 6962, section 2.1; RFC 9162, sections 2.1.3.2 (inclusion) and 2.1.4.2 (consistency).
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from mechanism.ledger.errors import ProofError

#: Bytes of a hash.
HASH_BYTES = 32

#: Root of the tree without entries.
EMPTY_ROOT = hashlib.sha256(b"").digest()

#: No tree of ours is larger; sizes travel as signed 64-bit integers.
MAX_SIZE = 2**63 - 1

#: Looks up the hashes of perfect subtrees (height, index), in the order asked.
Nodes = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def perfect_root(hashes: Sequence[bytes]) -> bytes:
    """Root over 2^h nodes of one level."""
    while len(hashes) > 1:
        hashes = [node_hash(*pair) for pair in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


def fold(roots: Sequence[bytes]) -> bytes:
    """Root over perfect subtrees of falling size, left to right."""
    if not roots:
        return EMPTY_ROOT
    root = roots[-1]
    for left in reversed(roots[:-1]):
        root = node_hash(left, root)
    return root


def perfect_parts(hashes: Sequence[bytes]) -> list[bytes]:
    """Roots of the perfect subtrees of falling size over nodes of one level, left to right."""
    return [perfect_root(hashes[i << height : (i + 1) << height]) for height, i in cover(0, len(hashes))]


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """MTH over leaf hashes."""
    return fold(perfect_parts(leaves))


def cover(start: int, end: int) -> list[tuple[int, int]]:
    """Perfect subtrees (height, index) that make up [start, end), left to right.

    `start` must be a multiple of the largest power of two that is at most end - start, as it is for every
    subtree of the RFC's recursion.
    """
    nodes = []
    while start < end:
        height = (end - start).bit_length() - 1
        nodes.append((height, start >> height))
        start += 1 << height
    return nodes


def root_from(nodes: Nodes, size: int) -> bytes:
    """MTH(D[0:size]) from stored nodes."""
    return fold(nodes(cover(0, size)))


def inclusion_proof(nodes: Nodes, index: int, size: int) -> list[bytes]:
    """PATH(index, D[0:size]), from the leaf's sibling to the root's child.

    Raises:
        ProofError: no such entry in a tree of that size.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofError(f"there is no entry {index} in a tree of {size}; indexes run from 0 to size - 1")
    parts: list[list[tuple[int, int]]] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            parts.append(cover(middle, end))
            end = middle
        else:
            parts.append(cover(start, middle))
            start = middle
    return _hash_parts(nodes, reversed(parts))


def consistency_proof(nodes: Nodes, first: int, second: int) -> list[bytes]:
    """PROOF(first, D[0:second]); empty where first = second or first = 0.

    Raises:
        ProofError: first > second, or a size out of range.
    """
    if not 0 <= first <= second <= MAX_SIZE:
        raise ProofError(
            f"no consistency proof leads from size {first} to {second}; expected 0 <= old <= new"
        )
    if first in (0, second):
        return []
    parts: list[list[tuple[int, int]]] = []
    start, end = 0, second
    while end != first:
        middle = start + _split(end - start)
        if first <= middle:
            parts.append(cover(middle, end))
            end = middle
        else:
            parts.append(cover(start, middle))
            start = middle
    if start > 0:
        parts.append(cover(start, end))
    return _hash_parts(nodes, reversed(parts))


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Raises ProofError unless `proof` shows that `leaf` is entry `index` of the tree (size, root)."""
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofError(f"no tree of {size} entries has an entry {index}")
    _check_lengths([leaf, root, *proof])
    computed = leaf
    for sibling, left in _sides("inclusion", index, size - 1, proof):
        computed = node_hash(sibling, computed) if left else node_hash(computed, sibling)
    if computed != root:
        raise ProofError(f"the inclusion proof of entry {index} leads to another root than the tree's")


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]
) -> None:
    """Raises ProofError unless `proof` shows that tree (second, second_root) extends (first, first_root).

    The empty tree proves nothing (RFC 9162 has 0 < first): a caller that starts from it decides for itself.
    """
    if not 0 < first <= second <= MAX_SIZE:
        raise ProofError(
            f"consistency from size {first} to {second} cannot be proved; expected 0 < old <= new"
        )
    _check_lengths([first_root, second_root, *proof])
    if first == second:
        if proof or first_root != second_root:
            raise ProofError(f"two different roots, or a proof that is not empty, for one size {first}")
        return
    if not proof:
        raise ProofError("the consistency proof is empty")
    path = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn >>= 1
        sn >>= 1
    old = new = path[0]
    for sibling, left in _sides("consistency", fn, sn, path[1:]):
        old = node_hash(sibling, old) if left else old
        new = node_hash(sibling, new) if left else node_hash(new, sibling)
    if old != first_root:
        raise ProofError(f"the consistency proof leads to another root of size {first} than the one known")
    if new != second_root:
        raise ProofError(f"the consistency proof leads to another root of size {second} than the one given")


def _sides(what: str, fn: int, sn: int, proof: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """The siblings on the way from node `fn` of a level whose last one is `sn` to the root, and whether each stands on
    the left: what the loops of RFC 9162, 2.1.3.2 and 2.1.4.2, have in common."""
    for sibling in proof:
        if sn == 0:
            raise ProofError(f"the {what} proof is longer than the tree is high")
        left = bool(fn & 1) or fn == sn
        yield sibling, left
        while left and fn != 0 and not fn & 1:
            fn, sn = fn >> 1, sn >> 1
        fn, sn = fn >> 1, sn >> 1
    if sn != 0:
        raise ProofError(f"the {what} proof is shorter than the tree is high")


def _split(n: int) -> int:
    """The largest power of two below n, n >= 2."""
    return 1 << ((n - 1).bit_length() - 1)


def _hash_parts(nodes: Nodes, parts: Iterable[list[tuple[int, int]]]) -> list[bytes]:
    """The hash of each part, with one look-up for all."""
    ordered = list(parts)
    found = iter(nodes([node for part in ordered for node in part]))
    return [fold([next(found) for _ in part]) for part in ordered]


def _check_lengths(hashes: Iterable[bytes]) -> None:
    for value in hashes:
        if len(value) != HASH_BYTES:
            raise ProofError(f"a hash of {len(value)} bytes; expected {HASH_BYTES}")
