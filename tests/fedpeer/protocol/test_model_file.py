import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpeer.protocol.limits import FRAME_BYTES, MAX_MODEL_HEADER_BYTES
from fedpeer.protocol.model_file import (
    ModelCheck,
    ModelFileError,
    check_model,
    contract_of,
    encode_model,
    file_digest,
    frames,
    open_model,
)
from mechanism.errors import FieldError
from mechanism.terms import TensorSpec

WEIGHTS = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "bn.num_batches_tracked": np.array(7, dtype=np.int64),
    "bias": np.zeros(0, dtype=np.float64),
    "half": np.ones(3, dtype=np.float16),
}
CONTRACT = contract_of(WEIGHTS, Decimal(100), 10_000)


def write(path: Path, weights: dict[str, Any]) -> Path:
    path.write_bytes(encode_model(weights))
    return path


def raw(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes((len(header) if length is None else length).to_bytes(8, "little") + header + data)
    return path


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    model = check_model(write(tmp_path / "m", WEIGHTS), CONTRACT)
    back = model.weights()
    assert back.keys() == WEIGHTS.keys()
    for name, array in WEIGHTS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)
    assert [tensor.spec for tensor in model.tensors] == list(CONTRACT.tensors)


def test_equal_weights_give_equal_bytes_in_any_order() -> None:
    shuffled = {name: np.array(WEIGHTS[name]) for name in reversed(WEIGHTS)}
    assert encode_model(shuffled) == encode_model(WEIGHTS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bias": None}, "'bias' is missing"),
        ({"extra": np.ones(1, np.float32)}, "'extra' is not in the contract"),
        ({"conv.weight": np.zeros((2, 3, 5), np.float32)}, "expected F32 of shape [2, 3, 4]"),
        ({"conv.weight": np.zeros((2, 3, 4), np.float64)}, "is F64 of shape"),
        ({"conv.weight": np.full((2, 3, 4), np.nan, np.float32)}, "24 values that are NaN"),
        ({"half": np.array([1, np.inf, 1], np.float16)}, "1 values that are NaN or infinite"),
        ({"conv.weight": np.full((2, 3, 4), 1e6, np.float32)}, "norm is"),
    ],
)
def test_a_model_outside_the_contract_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    weights = {name: array for name, array in {**WEIGHTS, **change}.items() if array is not None}
    with pytest.raises(ModelFileError) as refused:
        check_model(write(tmp_path / "m", weights), CONTRACT)
    assert reason in str(refused.value)


def test_a_file_beyond_the_contracts_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(bytes(10_001))
    with pytest.raises(ModelFileError, match="at most 10000"):
        check_model(path, CONTRACT)


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        b"not json",
        b"[]",
        b"[" * 100_000,
        json.dumps({"w": entry([2], 0, 8)}).encode()[:-1],
        json.dumps({"w": entry([3], 0, 8)}).encode(),
        json.dumps({"w": entry([2], 4, 12)}).encode(),
        json.dumps({"w": entry([2], 8, 0)}).encode(),
        json.dumps({"w": entry([2], 0, 8, "F31")}).encode(),
        json.dumps({"w": entry([2], 0, 8, ["F32"])}).encode(),
        json.dumps({"w": entry([-2], 0, 8)}).encode(),
        json.dumps({"w": entry([2**62, 2**62], 0, 8)}).encode(),
        json.dumps({"w": entry([True, 2], 0, 8)}).encode(),
        json.dumps({"w": entry([1] * 40, 0, 4)}).encode(),
        json.dumps({"w": entry([2], 0.0, 8.0)}).encode(),
        json.dumps({"w": {"dtype": "F32", "shape": [2]}}).encode(),
        json.dumps({"w": 5}).encode(),
        json.dumps({"n" * 10_000: entry([2], 0, 8)}).encode(),
        json.dumps({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}).encode(),
        json.dumps({"a": entry([1], 0, 4)}).encode(),
        b'{"w": '
        + json.dumps(entry([2], 0, 8)).encode()
        + b', "w": '
        + json.dumps(entry([2], 0, 8)).encode()
        + b"}",
        b'{"w": NaN}',
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(ModelFileError):
        open_model(raw(tmp_path / "m", header, bytes(8)))


@pytest.mark.parametrize("length", [0, 1, 2**63, 2**64 - 1, MAX_MODEL_HEADER_BYTES + 1])
def test_a_header_length_that_lies_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelFileError):
        open_model(raw(tmp_path / "m", b"{}", bytes(16), length))


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_refusal(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "m"
    path.write_bytes(data)
    with pytest.raises(ModelFileError):
        check_model(path, CONTRACT)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=200),
    st.sampled_from(["good", "nan", "large", "layout"]),
)
def test_a_file_in_pieces_of_any_size_is_judged_as_the_whole(sizes: list[int], kind: str) -> None:
    weights = dict(WEIGHTS)
    if kind == "nan":
        weights["half"] = np.array([1, np.nan, 1], np.float16)
    elif kind == "large":
        weights["conv.weight"] = np.full((2, 3, 4), 1e6, np.float32)
    elif kind == "layout":
        del weights["bias"]
    content = encode_model(weights)

    def judged(pieces: list[int]) -> str:
        check, position = ModelCheck(CONTRACT, len(content)), 0
        try:
            for size in pieces:
                check.feed(content[position : position + size])
                position += size
            check.feed(memoryview(content)[position:])
            check.finish()
        except ModelFileError as error:
            return str(error)
        return ""

    assert judged(sizes) == judged([])
    assert (judged([]) == "") == (kind == "good")


def test_a_file_that_ends_early_is_no_model() -> None:
    content = encode_model(WEIGHTS)
    for length in (0, 7, 8, 50, len(content) - 1):
        check = ModelCheck(CONTRACT, len(content))
        check.feed(content[:length])
        with pytest.raises(ModelFileError, match="ends at byte"):
            check.finish()


def test_bfloat16_is_read_as_float32(tmp_path: Path) -> None:
    header = json.dumps({"w": entry([2], 0, 4, "BF16")}).encode()
    path = raw(tmp_path / "m", header, np.array([0x3F80, 0xC000], "<u2").tobytes())
    np.testing.assert_array_equal(open_model(path).weights()["w"], np.array([1.0, -2.0], np.float32))


def test_an_element_type_that_safetensors_lacks_is_refused() -> None:
    with pytest.raises(FieldError, match="complex64"):
        encode_model({"w": np.zeros(1, np.complex64)})


def test_frames_from_any_offset_make_up_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(np.random.default_rng(0).bytes(2 * FRAME_BYTES + 5))
    for offset in (0, 1, FRAME_BYTES, 2 * FRAME_BYTES + 5):
        parts = list(frames(path, offset))
        assert b"".join(data for _, data in parts) == path.read_bytes()[offset:]
        position = offset
        for start, data in parts:
            assert start == position
            position += len(data)
    assert len(file_digest(path)) == 32


def test_float32_is_rounded_to_the_nearest_bfloat16_half_to_even() -> None:
    import torch

    from fedpeer.protocol.model_file import narrow, widen

    bits = np.random.default_rng(3).integers(0, 2**32, 20_000, dtype=np.uint32)
    edges = np.array(
        [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x80000000], np.uint32
    )
    values = np.concatenate([bits, edges]).view(np.float32)
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    found = widen(narrow(values))
    assert np.array_equal(np.isnan(found), np.isnan(values)), "not a number stays so"
    assert np.array_equal(found, expected, equal_nan=True)
    halves = np.arange(2**16, dtype=np.uint32).astype("<u2")
    numbers = halves[~np.isnan(widen(halves))]
    assert np.array_equal(narrow(widen(numbers)), numbers)


def test_only_float32_is_written_as_bfloat16_where_that_is_wanted() -> None:
    from fedpeer.protocol.model_file import stored_spec

    wanted = TensorSpec("w", "BF16", (2,))
    assert stored_spec("w", np.zeros(2, np.float32), wanted) == wanted
    for other in (np.float64, np.float16, np.int32):
        assert stored_spec("w", np.zeros(2, other), wanted) != wanted
