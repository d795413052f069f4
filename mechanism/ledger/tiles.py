"""The tree's nodes as tiles, so that a proof reads O(log n) of them and an append rewrites O(1).

Tile (L, N) holds the hashes of nodes (8 L, 256 N) ... (8 L, 256 N + 255), as far as they exist: 256 hashes, or fewer
at the right edge. Levels in between are recomputed inside one tile.

Source: https://c2sp.org/tlog-tiles
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from mechanism.ledger.errors import EntryError, ProofError
from mechanism.ledger.merkle import HASH_BYTES, fold, perfect_parts, perfect_root

#: Tree levels in one tile, and hashes in a full one; fixed by tlog-tiles.
TILE_HEIGHT = 8
TILE_WIDTH = 1 << TILE_HEIGHT
_FULL_BYTES = TILE_WIDTH * HASH_BYTES

#: (level, index) of a tile.
Coordinates = tuple[int, int]

#: Looks up tiles; a partial tile may be wider than asked for, never narrower.
ReadTiles = Callable[[Sequence[Coordinates]], Mapping[Coordinates, bytes]]


def append_to_tiles(
    read_tiles: ReadTiles, size: int, leaves: Sequence[bytes]
) -> list[tuple[Coordinates, bytes]]:
    """The tiles that change when `leaves` (leaf hashes) join a tree of `size`, with their new content."""
    changed: list[tuple[Coordinates, bytes]] = []
    level, hashes = 0, list(leaves)
    while hashes:
        index, width = divmod(size, TILE_WIDTH)
        if width:
            hashes = split_hashes(_narrowed(read_tiles([(level, index)]), (level, index), width)) + hashes
        roots = []
        for start in range(0, len(hashes), TILE_WIDTH):
            tile = hashes[start : start + TILE_WIDTH]
            changed.append(((level, index), b"".join(tile)))
            if len(tile) == TILE_WIDTH:
                roots.append(perfect_root(tile))
            index += 1
        level, size, hashes = level + 1, size // TILE_WIDTH, roots
    return changed


class GrowingTree:
    """A tree that grows by leaf hashes, as the last tile of each level: O(log n) state, O(1) amortised work."""

    def __init__(self) -> None:
        self.size = 0
        self._rows: list[list[bytes]] = []

    def extend(self, leaves: Sequence[bytes]) -> list[tuple[Coordinates, list[bytes]]]:
        """Adds leaf hashes; returns the tiles that they complete."""
        size, level, hashes = self.size, 0, list(leaves)
        self.size += len(hashes)
        whole: list[tuple[Coordinates, list[bytes]]] = []
        while hashes:
            if level == len(self._rows):
                self._rows.append([])
            row, hashes, size = self._rows[level] + hashes, [], size // TILE_WIDTH
            for start in range(0, len(row) - TILE_WIDTH + 1, TILE_WIDTH):
                tile = row[start : start + TILE_WIDTH]
                whole.append(((level, size + len(hashes)), tile))
                hashes.append(perfect_root(tile))
            self._rows[level] = row[len(hashes) * TILE_WIDTH :]
            level += 1
        return whole

    def edge(self) -> list[tuple[Coordinates, list[bytes]]]:
        """The tiles that are not full yet."""
        return [
            ((level, self.size >> TILE_HEIGHT * (level + 1)), row)
            for level, row in enumerate(self._rows)
            if row
        ]

    def root(self) -> bytes:
        """MTH of all that was added."""
        return fold([root for row in reversed(self._rows) for root in perfect_parts(row)])


class TileNodes:
    """Node look-up from tiles, for the proofs of `merkle`. Reads each tile that it needs once."""

    def __init__(self, read_tiles: ReadTiles, size: int) -> None:
        self._read_tiles = read_tiles
        self._size = size
        self._tiles: dict[Coordinates, bytes] = {}

    def __call__(self, nodes: Sequence[tuple[int, int]]) -> list[bytes]:
        places = [_place(height, index) for height, index in nodes]
        wanted = sorted({tile for tile, _, _ in places} - self._tiles.keys())
        if wanted:
            found = self._read_tiles(wanted)
            for tile in wanted:
                self._tiles[tile] = _narrowed(found, tile, tile_width(self._size, *tile))
        return [
            perfect_root(split_hashes(self._tiles[tile][start * HASH_BYTES : end * HASH_BYTES]))
            for tile, start, end in places
        ]


def tile_width(size: int, level: int, index: int) -> int:
    """Hashes in a tile of a tree of `size`: 0 where there is none yet, 256 where it is full."""
    return max(0, min(TILE_WIDTH, (size >> (TILE_HEIGHT * level)) - index * TILE_WIDTH))


def tiles_of(size: int) -> Iterable[Coordinates]:
    """All tiles of a tree of `size`, level by level."""
    level = 0
    while size >> (TILE_HEIGHT * level):
        for index in range(-(-(size >> (TILE_HEIGHT * level)) // TILE_WIDTH)):
            yield level, index
        level += 1


def tile_path(level: int, index: int, width: int) -> str:
    """Where tlog-tiles publishes a tile of `width` hashes, relative to the log's address."""
    return f"tile/{level}/{_index_path(index, width)}"


def bundle_path(index: int, width: int) -> str:
    """Where tlog-tiles publishes the entries [256 index, 256 index + width)."""
    return f"tile/entries/{_index_path(index, width)}"


def pack_bundle(entries: Iterable[bytes]) -> bytes:
    """Entries one after the other, each after its length (big-endian, 16 bits)."""
    return b"".join([part for entry in entries for part in (len(entry).to_bytes(2, "big"), entry)])


def unpack_bundle(data: bytes) -> list[bytes]:
    """The entries of a bundle.

    Raises:
        EntryError: the data ends inside an entry.
    """
    entries = []
    position, end = 0, len(data)
    while position < end:
        start = position + 2
        position = start + ((data[start - 2] << 8 | data[start - 1]) if start <= end else end)
        if position > end:
            raise EntryError("a bundle of entries ends inside an entry; it is truncated or its lengths lie")
        entries.append(data[start:position])
    return entries


def split_hashes(data: bytes) -> list[bytes]:
    """A tile's hashes, one by one."""
    return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]


def _place(height: int, index: int) -> tuple[Coordinates, int, int]:
    """The tile that node (height, index) is computed from, and the range of the tile's hashes below it."""
    level, inner = divmod(height, TILE_HEIGHT)
    first = index << inner
    tile, start = divmod(first, TILE_WIDTH)
    return (level, tile), start, start + (1 << inner)


def _narrowed(found: Mapping[Coordinates, bytes], tile: Coordinates, width: int) -> bytes:
    data = found.get(tile, b"")
    if len(data) < width * HASH_BYTES or len(data) % HASH_BYTES or len(data) > _FULL_BYTES:
        raise ProofError(
            f"tile {tile[0]}/{tile[1]} holds {len(data)} bytes; expected {width} hashes of {HASH_BYTES} bytes"
        )
    return data[: width * HASH_BYTES]


def _index_path(index: int, width: int) -> str:
    groups = [f"{index % 1000:03d}"]
    while index >= 1000:
        index //= 1000
        groups.append(f"x{index % 1000:03d}")
    path = "/".join(reversed(groups))
    return path if width == TILE_WIDTH else f"{path}.p/{width}"
