"""A commitment to samples that tells nothing of them: the root of a tree over their salted digests.

    digest of a sample   SHA-256 over each of its arrays, in the order of their names: name, type, shape, bytes
    leaf                 HMAC-SHA-256(salt, digest)
    root                 that of RFC 6962 over the leaves in the order of their bytes

Without the salt of 32 random bytes nobody can try samples against a leaf. The order tells nothing, and two rows of one
content are two leaves of one value, so that repeats count. Texts are taken as UTF-8, whatever their arrays' type.

Source: RFC 6962, section 2.1.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mechanism.errors import FieldError
from mechanism.ledger.merkle import leaf_hash, tree_root

#: Bytes of a salt, and of a root.
SALT_BYTES = 32

#: The name that targets have among the arrays.
TARGETS = "targets"


def sample_digests(
    inputs: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    targets: npt.ArrayLike,
    columns: Mapping[str, npt.ArrayLike] | None = None,
) -> list[bytes]:
    """The digest of each sample.

    Args:
        inputs: one array, or several by name, with a row a sample; targets: a row a sample.
        columns: what else is known of each sample, by name, as strata may be those of a column.

    Raises:
        FieldError: no sample, or arrays of different lengths.
    """
    parts = inputs if isinstance(inputs, Mapping) else {"inputs": inputs}
    named = {f"inputs.{name}": np.asarray(part) for name, part in parts.items()}
    named |= {f"columns.{name}": np.asarray(part) for name, part in (columns or {}).items()}
    named[TARGETS] = np.asarray(targets)
    lengths = {name: len(part) if part.ndim else 0 for name, part in named.items()}
    count = lengths[TARGETS]
    if not count or set(lengths.values()) != {count}:
        raise FieldError("samples", lengths, "arrays with a row a sample, at least one, all of one length")
    return [_digest([(name, part[row]) for name, part in sorted(named.items())]) for row in range(count)]


def samples_root(digests: Sequence[bytes], salt: bytes) -> bytes:
    """The root, 32 bytes. Raises FieldError for a salt of another length."""
    if len(salt) != SALT_BYTES:
        raise FieldError("salt", f"{len(salt)} bytes", f"{SALT_BYTES} random bytes")
    return tree_root(sorted(leaf_hash(hmac.digest(salt, digest, "sha256")) for digest in digests))


def _digest(parts: Sequence[tuple[str, Any]]) -> bytes:
    digest = hashlib.sha256()
    for name, value in parts:
        array = np.ascontiguousarray(value)
        if array.dtype.kind in "OUS":
            for text in array.ravel().tolist():
                data = text if isinstance(text, bytes) else str(text).encode()
                digest.update(b"%d\n" % len(data) + data)
            kind = "text"
        else:
            digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
            kind = array.dtype.newbyteorder("<").str
        digest.update(f"{name} {kind} {array.shape}\n".encode())
    return digest.digest()
