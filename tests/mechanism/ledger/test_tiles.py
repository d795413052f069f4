from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechanism.ledger.errors import EntryError, ProofError
from mechanism.ledger.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root_from,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from mechanism.ledger.tiles import (
    Coordinates,
    TileNodes,
    append_to_tiles,
    pack_bundle,
    tile_path,
    tile_width,
    tiles_of,
    unpack_bundle,
)

#: The example of the tlog-tiles text.
SIZE = 70_000
LEAVES = [leaf_hash(i.to_bytes(4)) for i in range(SIZE)]
TILES = dict(append_to_tiles(lambda wanted: {}, 0, LEAVES))


class Counted:
    """Looks tiles up and counts what it reads."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self, wanted: Sequence[Coordinates]) -> Mapping[Coordinates, bytes]:
        self.reads += len(wanted)
        return {tile: TILES[tile] for tile in wanted}


def test_a_tree_of_70_000_has_the_tiles_that_the_format_says() -> None:
    assert set(tiles_of(SIZE)) == TILES.keys()
    widths = {tile: len(data) // 32 for tile, data in TILES.items()}
    assert widths == {tile: tile_width(SIZE, *tile) for tile in TILES}
    assert sorted(width for (level, _), width in widths.items() if level == 0) == [112] + [256] * 273
    assert [widths[1, 0], widths[1, 1], widths[2, 0]] == [256, 17, 1]


def test_a_proof_reads_a_few_tiles_however_large_the_tree_is() -> None:
    root = tree_root(LEAVES)
    for index in (0, 255, 256, 12_345, 65_535, 65_536, SIZE - 1):
        read = Counted()
        proof = inclusion_proof(TileNodes(read, SIZE), index, SIZE)
        verify_inclusion(index, SIZE, LEAVES[index], proof, root)
        assert read.reads <= 6
    for old in (1, 256, 4_000, 65_536, 69_999):
        read = Counted()
        proof = consistency_proof(TileNodes(read, SIZE), old, SIZE)
        verify_consistency(old, SIZE, tree_root(LEAVES[:old]), root, proof)
        assert read.reads <= 8


@given(st.lists(st.integers(0, 600), max_size=6))
def test_tiles_do_not_mind_how_leaves_arrive(runs: list[int]) -> None:
    tiles: dict[Coordinates, bytes] = {}
    size = 0
    for run in runs:
        tiles.update(append_to_tiles(lambda wanted: tiles, size, LEAVES[size : size + run]))
        size += run
    assert tiles == dict(append_to_tiles(lambda wanted: {}, 0, LEAVES[:size]))
    if size:
        assert root_from(TileNodes(lambda wanted: tiles, size), size) == tree_root(LEAVES[:size])


def test_a_tile_that_is_missing_or_cut_is_named() -> None:
    for damaged in ({}, {(0, 0): TILES[0, 0][:100]}, {(0, 0): TILES[0, 0][:-32]}):
        with pytest.raises(ProofError, match="tile 0/0"):
            inclusion_proof(TileNodes(lambda wanted, d=damaged: d, 256), 3, 256)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("index", "width", "path"),
    [
        (0, 256, "tile/0/000"),
        (0, 5, "tile/0/000.p/5"),
        (1234067, 256, "tile/0/x001/x234/067"),
        (1000, 1, "tile/0/x001/000.p/1"),
    ],
)
def test_paths_are_those_of_the_format(index: int, width: int, path: str) -> None:
    assert tile_path(0, index, width) == path


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bundles_round_trip(entries: list[bytes]) -> None:
    assert unpack_bundle(pack_bundle(entries)) == entries


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5), st.data())
def test_a_cut_bundle_is_refused_or_shorter(entries: list[bytes], data: st.DataObject) -> None:
    whole = pack_bundle(entries)
    end = data.draw(st.integers(0, len(whole) - 1))
    try:
        found = unpack_bundle(whole[:end])
    except EntryError:
        return
    assert found == entries[: len(found)]
    assert len(found) < len(entries)
