"""Proofs from any source of a ledger: from its tiles, from a coordinator's answers, or from all leaves."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from fedpeer.audit.input_files import SourceError
from fedpeer.audit.sources import head_size
from mechanism.ledger.log_keys import LogKeys, key_change
from mechanism.ledger.merkle import consistency_proof, inclusion_proof, leaf_hash
from mechanism.ledger.note import Note, VerificationKey
from mechanism.ledger.tiles import Coordinates, TileNodes, append_to_tiles, tile_width
from mechanism.ledger.tlog_proof import TlogProof
from mechanism.ledger.verify import LedgerSource


@runtime_checkable
class Proving(Protocol):
    """A source that makes proofs itself, faster than from its tiles: a database, a coordinator."""

    def inclusion_proof(self, index: int, size: int) -> Sequence[bytes]: ...

    def consistency_proof(self, first: int, second: int) -> Sequence[bytes]: ...

    def key_changes(self) -> list[TlogProof]: ...

    def entry(self, index: int) -> bytes | None: ...


def receipt(source: LedgerSource, index: int) -> TlogProof:
    """The receipt of entry `index` under the source's latest head.

    Raises:
        ProofError: the head does not cover such an entry.
    """
    text = source.checkpoint()
    size = head_size(text)
    if isinstance(source, Proving):
        hashes = list(source.inclusion_proof(index, size))
    else:
        hashes = inclusion_proof(_nodes(source, size), index, size)
    return TlogProof(index, tuple(hashes), Note.parse(text), entry(source, index))


def key_changes(source: LedgerSource) -> list[TlogProof]:
    """The receipt of every change of the log's key, each under the head that both keys have signed.

    Raises:
        SourceError: the source keeps no such head.
    """
    if isinstance(source, Proving):
        return source.key_changes()
    changes = {}
    for index, data in enumerate(source.entries()):
        if (change := key_change(index, data)) is not None:
            changes[change.size] = data
    heads = {}
    for text in source.heads() if changes else ():
        if (size := head_size(text)) in changes:
            heads[size] = Note.parse(text)
    proofs = []
    nodes = _nodes(source, head_size(source.checkpoint())) if changes else None
    for size, data in changes.items():
        if size not in heads or nodes is None:
            raise SourceError(f"{source.name} keeps no head of {size} entries, which announces a key")
        path = inclusion_proof(nodes, size - 1, size)
        proofs.append(TlogProof(size - 1, tuple(path), heads[size], data))
    return proofs


def trusted_keys(source: LedgerSource, trusted: VerificationKey | None) -> LogKeys:
    """The log's keys, from the trusted one (the first, where None) to the present one."""
    first = trusted or VerificationKey.parse(source.verification_key())
    return LogKeys(first).followed(key_changes(source))


def consistency(source: LedgerSource, first: int) -> list[bytes]:
    """The proof that the source's latest head extends its tree of `first` entries."""
    size = head_size(source.checkpoint())
    if first == 0 or first >= size:
        return []
    if isinstance(source, Proving):
        return list(source.consistency_proof(first, size))
    return consistency_proof(_nodes(source, size), first, size)


def entry(source: LedgerSource, index: int) -> bytes:
    """Entry `index`."""
    one = source.entry(index) if isinstance(source, Proving) else None
    found = one or next(source.entries(index), None)
    if found is None:
        raise SourceError(f"{source.name} has no entry {index}")
    return found


def _nodes(source: LedgerSource, size: int) -> TileNodes:
    if size and source.tile(0, 0, tile_width(size, 0, 0)) is None:
        leaves = [leaf_hash(data) for _, data in zip(range(size), source.entries(), strict=False)]
        tiles = dict(append_to_tiles(lambda wanted: {}, 0, leaves))
        return TileNodes(lambda wanted: {tile: tiles[tile] for tile in wanted if tile in tiles}, size)

    def read(wanted: Sequence[Coordinates]) -> Mapping[Coordinates, bytes]:
        return {tile: source.tile(*tile, tile_width(size, *tile)) or b"" for tile in wanted}

    return TileNodes(read, size)
