"""FedAvg from files: right for every element type, the same bytes in any order."""

import os
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from coordinator import aggregation
from coordinator.aggregation import Merged, aggregate, merge
from fedpeer.protocol.model_file import (
    contract_of,
    encode_model,
    file_digest,
    header,
    open_model,
    tensor_spec,
)
from mechanism.errors import FieldError
from mechanism.server_step import FedAdam, FedAvg, FedAvgM, FedYogi

pytestmark = pytest.mark.arithmetic


#: Model file and weight, by participant id.
Parts = dict[str, tuple[Path, int]]


def part(folder: Path, name: str, samples: int, weights: dict[str, np.ndarray]) -> Parts:
    path = folder / f"{name}.safetensors"
    path.write_bytes(encode_model(weights))
    return {name: (path, samples)}


def together(parts: Iterable[Parts]) -> Parts:
    return {name: found for each in parts for name, found in each.items()}


def random_model(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "conv.weight": generator.normal(size=(3, 2, 5)).astype(np.float32),
        "double": generator.normal(size=7),
        "half": generator.normal(size=9).astype(np.float16),
        "norm.running_var": generator.uniform(size=4).astype(np.float32),
        "norm.num_batches_tracked": np.array(generator.integers(0, 1000), dtype=np.int64),
        "mask": generator.integers(0, 2, size=6).astype(bool),
    }


def test_the_mean_is_weighted_rounded_once_and_keeps_every_type(tmp_path: Path) -> None:
    samples = {"b": 3, "a": 100, "c": 17}
    models = {name: random_model(i) for i, name in enumerate(samples)}
    parts = together(part(tmp_path, name, n, models[name]) for name, n in samples.items())
    digest = aggregate(parts, tmp_path / "mean")
    assert digest == file_digest(tmp_path / "mean")
    mean = load_file(tmp_path / "mean")
    total = sum(samples.values())
    for key, value in mean.items():
        assert value.dtype == models["a"][key].dtype
        assert value.shape == models["a"][key].shape
        if value.dtype.kind == "f":
            exact = sum(n * models[k][key].astype(np.float64) for k, n in samples.items()) / total
            np.testing.assert_allclose(value.astype(np.float64), exact, rtol=np.finfo(value.dtype).eps)
    counters = sum(n * int(models[k]["norm.num_batches_tracked"]) for k, n in samples.items())
    assert int(mean["norm.num_batches_tracked"]) == round(Fraction(counters, total))
    votes = sum(n * models[k]["mask"].astype(int) for k, n in samples.items())
    np.testing.assert_array_equal(mean["mask"], votes * 2 > total)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations(range(5)),
    block=st.sampled_from([1, 7, 1 << 18]),
    threads=st.sampled_from([1, 3]),
)
def test_neither_order_nor_block_size_nor_threads_change_a_bit(
    tmp_path: Path, order: list[int], block: int, threads: int
) -> None:
    parts = [part(tmp_path, f"p{i}", i + 1, random_model(i)) for i in range(5)]
    first = aggregate(together(parts), tmp_path / "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "_BLOCK", block)
        patch.setattr(aggregation, "_THREADS", threads)
        assert aggregate(together(parts[i] for i in order), tmp_path / "second") == first


def test_counters_beyond_64_bits_do_not_overflow(tmp_path: Path) -> None:
    huge = np.array([2**62, -(2**62)], dtype=np.int64)
    parts = together(part(tmp_path, name, 10**6, {"n": huge}) for name in "abc")
    aggregate(parts, tmp_path / "mean")
    np.testing.assert_array_equal(load_file(tmp_path / "mean")["n"], huge)


def test_bfloat16_is_widened_averaged_and_rounded_to_even(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file

    tensors = [torch.randn(1000, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3)]
    parts = {}
    for i, tensor in enumerate(tensors):
        save_file({"w": tensor}, tmp_path / f"{i}")
        parts[f"p{i}"] = tmp_path / f"{i}", 1
    aggregate(parts, tmp_path / "mean")
    expected = (sum(t.double() for t in tensors) / 3).float().bfloat16()
    assert torch.equal(load_torch(tmp_path / "mean")["w"], expected)


def test_an_equal_model_comes_back_unchanged(tmp_path: Path) -> None:
    model = random_model(1)
    aggregate(together(part(tmp_path, name, 7, model) for name in "abc"), tmp_path / "mean")
    for key, value in load_file(tmp_path / "mean").items():
        np.testing.assert_allclose(value, model[key], rtol=1e-7)
    assert open_model(tmp_path / "mean").tensors


@pytest.mark.parametrize("case", ["none", "weight", "layout"])
def test_what_cannot_be_averaged_is_refused(tmp_path: Path, case: str) -> None:
    first = part(tmp_path, "a", 1, {"w": np.zeros(3, np.float32)})
    parts = {
        "none": {},
        "weight": {"a": (first["a"][0], 0)},
        "layout": first | part(tmp_path, "b", 1, {"w": np.zeros(4, np.float32)}),
    }[case]
    with pytest.raises(FieldError):
        aggregate(parts, tmp_path / "mean")


def many_tensors(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    found = {f"f{i}": generator.normal(size=i % 5).astype(np.float32) for i in range(300)}
    return found | {f"i{i}": generator.integers(0, 9, size=(2, 2), dtype=np.int32) for i in range(300)}


def test_many_small_tensors_are_read_as_if_they_were_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = together(part(tmp_path, f"p{i}", 1, many_tensors(i)) for i in range(3))
    reads = []
    read = os.preadv

    def counted(descriptor: int, into: Any, position: int) -> int:
        reads.append(position)
        return read(descriptor, into, position)

    monkeypatch.setattr(os, "preadv", counted)
    aggregate(parts, tmp_path / "mean")
    assert len(reads) == 3 * 2, "one of each file for each type of element"


@given(order=st.permutations(range(60)), block=st.sampled_from([1, 7, 1 << 18]))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_whose_tensors_stand_in_another_order_gives_the_same_mean(
    tmp_path: Path, order: list[int], block: int
) -> None:
    models = [dict(list(many_tensors(i).items())[270:330]) for i in range(2)]
    plain = together(part(tmp_path, f"p{i}", i + 1, model) for i, model in enumerate(models))
    names = [list(models[0])[i] for i in order]
    mixed = tmp_path / "mixed"
    specs = [tensor_spec(name, models[0][name]) for name in names]
    mixed.write_bytes(header(specs) + b"".join(models[0][name].tobytes() for name in names))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregation, "_BLOCK", block)
        assert aggregate(plain | {"p0": (mixed, 1)}, tmp_path / "b") == aggregate(plain, tmp_path / "a")


def merged(folder: Path, parts: Parts, rule: Any, start: Path, state: Path | None, name: str) -> Merged:
    contract = contract_of(load_file(start), Decimal(10**6), 10**6)
    return merge(parts, rule, contract, start, state, folder / name, folder / f"{name}-state")


@pytest.mark.parametrize("rule", [FedAvgM(), FedAdam(), FedYogi(averaged=())])
def test_a_step_is_the_rules_own_on_every_element_type_round_after_round(tmp_path: Path, rule: Any) -> None:
    start, state, kept = part(tmp_path, "w0", 1, random_model(9))["w0"][0], None, None
    for number in range(1, 4):
        parts = together(part(tmp_path, f"p{i}", i + 1, random_model(10 * number + i)) for i in range(3))
        found = merged(tmp_path, parts, rule, start, state, f"w{number}")
        before, made = load_file(start), load_file(tmp_path / f"w{number}")
        aggregate(parts, tmp_path / "mean")
        plain = load_file(tmp_path / "mean")
        moments = load_file(tmp_path / f"w{number}-state")
        stepped = [n for n, a in before.items() if a.dtype.kind == "f" and rule.steps(n)]
        assert sum(before[name].size for name in stepped) == moments["m"].size
        kept = kept or {name: rule.first_state(before[name].size) for name in stepped}
        for name, value in before.items():
            assert made[name].dtype == value.dtype
            if name not in stepped:
                np.testing.assert_array_equal(made[name], plain[name])
                continue
            weighted = (
                sum(
                    (i + 1) * load_file(p)[name].astype(np.float64) for i, (p, _) in enumerate(parts.values())
                )
                / 6
            )
            moved, kept[name] = rule.step(
                value.astype(np.float64).ravel(), np.asarray(weighted).ravel(), kept[name]
            )
            np.testing.assert_array_equal(made[name].ravel(), moved.astype(value.dtype))
        assert found == Merged(
            file_digest(tmp_path / f"w{number}"), file_digest(tmp_path / f"w{number}-state")
        )
        start, state = tmp_path / f"w{number}", tmp_path / f"w{number}-state"


@pytest.mark.parametrize(("block", "threads"), [(1, 1), (7, 3), (1 << 18, 3)])
def test_neither_blocks_nor_threads_change_a_bit_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, threads: int
) -> None:
    start = part(tmp_path, "start", 1, random_model(9))["start"][0]
    parts = together(part(tmp_path, f"p{i}", i + 1, random_model(i)) for i in range(3))
    first = merged(tmp_path, parts, FedAdam(), start, None, "w1")
    second = merged(tmp_path, parts, FedAdam(), tmp_path / "w1", tmp_path / "w1-state", "w2")
    monkeypatch.setattr(aggregation, "_BLOCK", block)
    monkeypatch.setattr(aggregation, "_THREADS", threads)
    assert merged(tmp_path, parts, FedAdam(), start, None, "v1") == first
    assert merged(tmp_path, parts, FedAdam(), tmp_path / "v1", tmp_path / "v1-state", "v2") == second


def test_the_plain_mean_keeps_no_state(tmp_path: Path) -> None:
    start = part(tmp_path, "start", 1, random_model(9))["start"][0]
    parts = part(tmp_path, "a", 3, random_model(1))
    assert merged(tmp_path, parts, FedAvg(), start, None, "w1") == Merged(aggregate(parts, tmp_path / "mean"))
    assert not (tmp_path / "w1-state").exists()


def test_a_step_that_leaves_the_contract_is_refused(tmp_path: Path) -> None:
    model = {"w": np.zeros(4, np.float32)}
    start = part(tmp_path, "start", 1, model)["start"][0]
    parts = part(tmp_path, "a", 1, {"w": np.ones(4, np.float32)})
    contract = contract_of(model, Decimal(10), 10**6)
    with pytest.raises(FieldError, match=r"aggregation.rate.*keeps the model's contract"):
        merge(parts, FedAvgM(Decimal(100)), contract, start, None, tmp_path / "w", tmp_path / "s")


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    parts = part(tmp_path, "a", 1, {"w": np.ones(4, np.float32)})
    start = part(tmp_path, "start", 1, {"w": np.zeros(4, np.float32)})["start"][0]
    other = part(tmp_path, "other", 1, {"m": np.zeros(5)})["other"][0]
    with pytest.raises(FieldError, match="a server's state of 4 elements by fedavgm"):
        merged(tmp_path, parts, FedAvgM(), start, other, "w")
