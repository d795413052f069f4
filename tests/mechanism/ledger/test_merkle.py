import base64
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.ledger.errors import ProofError
from mechanism.ledger.merkle import (
    EMPTY_ROOT,
    consistency_proof,
    cover,
    inclusion_proof,
    leaf_hash,
    node_hash,
    perfect_root,
    root_from,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from mechanism.ledger.tiles import GrowingTree, append_to_tiles
from tests import vectors

#: The issue asks for consistency proofs of every size pair up to here.
LARGEST = 64

LEAVES = [leaf_hash(bytes([i])) for i in range(LARGEST)]
ROOTS = [tree_root(LEAVES[:size]) for size in range(LARGEST + 1)]
PAIRS = [(old, new) for new in range(1, LARGEST + 1) for old in range(1, new + 1)]


def plain_root(leaves: Sequence[bytes]) -> bytes:
    """MTH word for word, as RFC 6962 section 2.1 has it."""
    if not leaves:
        return EMPTY_ROOT
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return node_hash(plain_root(leaves[:k]), plain_root(leaves[k:]))


def plain_consistency(m: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF word for word, as RFC 6962 section 2.1.2 has it."""
    n = len(leaves)
    if m == n:
        return [] if whole else [plain_root(leaves)]
    k = 1
    while 2 * k < n:
        k *= 2
    if m <= k:
        return [*plain_consistency(m, leaves[:k], whole), plain_root(leaves[k:])]
    return [*plain_consistency(m - k, leaves[k:], False), plain_root(leaves[:k])]


def nodes(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
    """Perfect subtrees over LEAVES."""
    return [perfect_root(LEAVES[i << h : (i + 1) << h]) for h, i in wanted]


def flips(value: bytes) -> list[bytes]:
    """Every single-bit corruption."""
    return [(int.from_bytes(value) ^ (1 << bit)).to_bytes(len(value)) for bit in range(8 * len(value))]


@given(st.lists(st.binary(max_size=4), max_size=600))
def test_the_root_is_that_of_the_recursion(data: list[bytes]) -> None:
    leaves = [leaf_hash(item) for item in data]
    assert tree_root(leaves) == plain_root(leaves)


@given(st.lists(st.integers(0, 300), max_size=6))
def test_a_growing_tree_does_not_mind_how_leaves_arrive(runs: list[int]) -> None:
    leaves = [leaf_hash(i.to_bytes(2)) for i in range(sum(runs))]
    tree, start, tiles = GrowingTree(), 0, {}
    for run in runs:
        tiles.update(tree.extend(leaves[start : start + run]))
        start += run
        assert tree.root() == tree_root(leaves[:start])
    tiles.update(tree.edge())
    assert {place: b"".join(tile) for place, tile in tiles.items()} == dict(
        append_to_tiles(lambda wanted: {}, 0, leaves)
    )


@given(st.integers(0, 10**6))
def test_a_cover_is_made_of_perfect_subtrees_without_gap(size: int) -> None:
    place = 0
    for height, index in cover(0, size):
        assert index << height == place
        place += 1 << height
    assert place == size


def test_the_empty_root_is_that_of_no_bytes_and_leaves_differ_from_nodes() -> None:
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert leaf_hash(LEAVES[0] + LEAVES[1]) != node_hash(LEAVES[0], LEAVES[1])


def test_no_odd_node_is_duplicated() -> None:
    assert tree_root([*LEAVES[:3]]) != tree_root([*LEAVES[:3], LEAVES[2]])


@pytest.mark.parametrize("size", range(1, LARGEST + 1))
def test_every_inclusion_proof_verifies_and_no_corruption_of_it(size: int) -> None:
    assert root_from(nodes, size) == ROOTS[size]
    for index in range(size):
        proof = inclusion_proof(nodes, index, size)
        verify_inclusion(index, size, LEAVES[index], proof, ROOTS[size])
        for other in {index - 1, index + 1, index ^ 1} & set(range(size)):
            with pytest.raises(ProofError):
                verify_inclusion(other, size, LEAVES[index], proof, ROOTS[size])
        for wrong in corrupted_lists(proof):
            with pytest.raises(ProofError):
                verify_inclusion(index, size, LEAVES[index], wrong, ROOTS[size])


def corrupted_lists(proof: list[bytes]) -> list[list[bytes]]:
    """Hashes dropped, added, swapped, of a wrong length, or with one bit flipped."""
    wrong = [[*proof, bytes(32)], [bytes(32), *proof]]
    for i, value in enumerate(proof):
        wrong.append(proof[:i] + proof[i + 1 :])
        wrong.append([*proof[:i], value, *proof[i:]])
        wrong.append([*proof[:i], value[:31], *proof[i + 1 :]])
        wrong.append([*proof[:i], bytes([value[0] ^ 128]) + value[1:], *proof[i + 1 :]])
    for i, (left, right) in enumerate(pairwise(proof)):
        if left != right:
            wrong.append([*proof[:i], right, left, *proof[i + 2 :]])
    return wrong


def test_consistency_proofs_of_all_size_pairs_are_those_of_the_recursion() -> None:
    for old, new in PAIRS:
        proof = consistency_proof(nodes, old, new)
        assert proof == plain_consistency(old, LEAVES[:new])
        verify_consistency(old, new, ROOTS[old], ROOTS[new], proof)


def test_every_corrupted_field_of_every_consistency_proof_is_refused() -> None:
    for old, new in PAIRS:
        proof = consistency_proof(nodes, old, new)
        for wrong in corrupted_lists(proof):
            refuse(old, new, ROOTS[old], ROOTS[new], wrong)
        for other in {0, old - 1, old + 1, old * 2, -1} - {old}:
            # The sizes of two proofs may describe the same path; then the old root must differ.
            refuse(other, new, ROOTS[old], ROOTS[new], proof)
        for other in {new - 1, new * 2, 0, old - 1} - {new}:
            if ROOTS[new] != ROOTS[min(max(other, 0), LARGEST)]:
                refuse_or_same_path(old, other, new, proof)
        refuse(old, new, flips(ROOTS[old])[7], ROOTS[new], proof)
        refuse(old, new, ROOTS[old], flips(ROOTS[new])[255], proof)
        refuse(old, new, ROOTS[old][:31], ROOTS[new], proof)
        if old != new:
            refuse(old, new, ROOTS[new], ROOTS[old], proof)
            refuse(new, old, ROOTS[new], ROOTS[old], proof)
        refuse(old, new, EMPTY_ROOT, ROOTS[new], proof)


def refuse_or_same_path(old: int, claimed: int, new: int, proof: list[bytes]) -> None:
    """A proof does not bind the new size where another has the same path; the checkpoint's signature does."""
    try:
        verify_consistency(old, claimed, ROOTS[old], ROOTS[new], proof)
    except ProofError:
        return
    assert path_shape(old, claimed) == path_shape(old, new)


def path_shape(old: int, new: int) -> list[bool]:
    """At which steps RFC 9162 hashes from the left."""
    fn, sn, shape = old - 1, new - 1, []
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    while sn:
        left = bool(fn & 1 or fn == sn)
        shape.append(left)
        if left:
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        fn, sn = fn >> 1, sn >> 1
    return shape


def refuse(old: int, new: int, old_root: bytes, new_root: bytes, proof: list[bytes]) -> None:
    with pytest.raises(ProofError):
        verify_consistency(old, new, old_root, new_root, proof)


@pytest.mark.parametrize(
    ("old", "new"), [(1, 2), (3, 7), (4, 8), (6, 7), (6, 8), (7, 8), (31, 64), (33, 63), (63, 64), (64, 64)]
)
def test_every_single_bit_of_a_consistency_proof_counts(old: int, new: int) -> None:
    proof = consistency_proof(nodes, old, new)
    for i, value in enumerate(proof):
        for wrong in flips(value):
            refuse(old, new, ROOTS[old], ROOTS[new], [*proof[:i], wrong, *proof[i + 1 :]])
    for wrong in flips(ROOTS[old]):
        refuse(old, new, wrong, ROOTS[new], proof)
    for wrong in flips(ROOTS[new]):
        refuse(old, new, ROOTS[old], wrong, proof)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_single_bit_of_every_consistency_proof_counts() -> None:
    for old, new in PAIRS:
        test_every_single_bit_of_a_consistency_proof_counts(old, new)


def test_the_empty_tree_proves_nothing() -> None:
    for new in (0, 1, 5):
        refuse(0, new, EMPTY_ROOT, ROOTS[new], [])


@pytest.mark.parametrize(("index", "size"), [(-1, 1), (0, 0), (1, 1), (2**63, 2**64), (0, 2**63)])
def test_an_index_outside_the_tree_is_refused(index: int, size: int) -> None:
    with pytest.raises(ProofError):
        verify_inclusion(index, size, LEAVES[0], [], LEAVES[0])
    with pytest.raises(ProofError):
        inclusion_proof(nodes, index, size)


def test_the_98_public_inclusion_probes_are_judged_as_they_should() -> None:
    probes = sorted((vectors.folder() / "transparency-dev-merkle/testdata/inclusion").rglob("*.json"))
    assert len(probes) == 98
    verdicts = [judged(probe) for probe in probes]
    assert verdicts.count(True) == 6


def judged(probe: Path) -> bool:
    case = json.loads(probe.read_text())
    leaf, root = (base64.b64decode(case[key] or "") for key in ("leafHash", "root"))
    proof = [base64.b64decode(item) for item in case["proof"] or []]
    try:
        verify_inclusion(case["leafIdx"], case["treeSize"], leaf, proof, root)
    except ProofError:
        assert case["wantErr"], probe
        return False
    assert not case["wantErr"], probe
    return True


def test_the_ct_reference_tree_has_its_roots_hashes_and_proofs() -> None:
    reference = vectors.load("rfc6962_ct_reference.json")
    leaves = [leaf_hash(bytes.fromhex(item)) for item in reference["leaves_hex"]]
    roots = [bytes.fromhex(item) for item in reference["roots_hex"]]
    assert [tree_root(leaves[: i + 1]) for i in range(8)] == roots
    assert reference["empty_root_hex"] == EMPTY_ROOT.hex()
    for case in reference["hasher"]:
        if "leaf_hex" in case:
            assert leaf_hash(bytes.fromhex(case["leaf_hex"])).hex() == case["want_hex"]
        else:
            pair = bytes.fromhex(case["left_hex"]), bytes.fromhex(case["right_hex"])
            assert node_hash(*pair).hex() == case["want_hex"]

    def reference_nodes(wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return [perfect_root(leaves[i << h : (i + 1) << h]) for h, i in wanted]

    for case in reference["inclusion"]:
        proof = inclusion_proof(reference_nodes, case["leaf_1based"] - 1, case["size"])
        assert [value.hex() for value in proof] == case["proof_hex"]
    for case in reference["consistency"]:
        old, new = case["size1"], case["size2"]
        proof = consistency_proof(reference_nodes, old, new)
        assert [value.hex() for value in proof] == case["proof_hex"]
        verify_consistency(old, new, roots[old - 1], roots[new - 1], proof)
