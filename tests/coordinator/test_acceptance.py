"""`open` refuses what nobody could join or what could not be recorded, before anything is reserved.

Each documented limit is tried at its value and one beyond. tests/integration/test_largest_tasks.py has participants
join at the values.
"""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.acceptance import check_acceptable
from coordinator.errors import MarketTaskError
from coordinator.opening import prepare_task
from fedpeer.protocol.limits import (
    MAX_DIMENSIONS,
    MAX_LABELS,
    MAX_MODEL_HEADER_BYTES,
    MAX_NUMBER_CHARACTERS,
    MAX_PHASE_SECONDS,
    MAX_ROUNDS,
    MAX_TENSOR_NAME,
    MAX_TENSORS,
)
from fedpeer.protocol.model_file import ModelFileError, check_header, encode_model, header
from mechanism.canonical import MAX_INTEGER, canonical_bytes
from mechanism.errors import FieldError
from mechanism.ledger import entries
from mechanism.terms import TensorSpec, Terms
from mechanism.workload import Columns, Labels
from tests import ledger_samples as samples
from tests.integration.serving import task_config


def weights(count: int, name: str = "layer.{:05d}.attention.self.query.weight") -> dict[str, Any]:
    """As many tensors of one number each."""
    return {name.format(i): np.full(1, 0.01, np.float32) for i in range(count)}


def opened(folder: Path, **changes: Any) -> Terms:
    return prepare_task(task_config(folder, **changes), 1_000.0).row.terms


def uniform(labels: int) -> list[str]:
    return [f"1/{labels}"] * labels


def shaped(dimensions: int) -> dict[str, Any]:
    return {"w": np.zeros((1,) * dimensions, np.float32)}


#: The documented limits of a task file: what is changed for the value, and what the refusal of one more names.
LIMITS: dict[str, tuple[int, Callable[[int], dict[str, Any]], str]] = {
    "tensors": (MAX_TENSORS, lambda n: {"weights": weights(n)}, "20001 tensors; at most 20000"),
    "dimensions": (MAX_DIMENSIONS, lambda n: {"weights": shaped(n)}, "at most 16 sizes"),
    "name": (
        MAX_TENSOR_NAME,
        lambda n: {"weights": {"n" * n: np.zeros(1, np.float32)}},
        "expected 1 to 256 characters",
    ),
    "labels": (
        MAX_LABELS,
        lambda n: {"reference": uniform(n)},
        "reference is '2001 values'; expected at most 2000",
    ),
    "rounds": (
        MAX_ROUNDS,
        lambda n: {"schedule": {"rounds": n}},
        "schedule.rounds is 10001; expected at most 10000",
    ),
    "capacity": (
        MAX_INTEGER // 1_609_438,  # what the task file's Q pays one at most, micro-credits
        lambda n: {"schedule": {"capacity": n, "rounds": 1}},
        "capacity is 5596487256; expected at most 5596487255: the bill must stay below",
    ),
    "effort": (
        MAX_PHASE_SECONDS,
        lambda n: {"schedule": {"effort_seconds": n}},
        "effort_seconds is 31622401",
    ),
    "round": (MAX_PHASE_SECONDS, lambda n: {"schedule": {"round_seconds": n}}, "round_seconds is 31622401"),
    "samples": (MAX_INTEGER, lambda n: {"recipe": {"samples": n}}, "recipe.samples is 9007199254740992"),
    "epochs": (MAX_INTEGER, lambda n: {"recipe": {"epochs": n}}, "recipe.epochs is 9007199254740992"),
    "batch": (MAX_INTEGER, lambda n: {"recipe": {"batch_size": n}}, "recipe.batch_size is 9007199254740992"),
    "task id": (64, lambda n: {"id": "t" * n}, "1 to 64"),
    "decimals": (30, lambda n: {"phi": "0." + "0" * (n - 1) + "1"}, "at most 30 digits"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_a_task_opens_at_each_limit_and_not_one_beyond(limit: str, tmp_path: Path) -> None:
    most, changes, words = LIMITS[limit]
    terms = opened(tmp_path, **changes(most))
    assert Terms.parse(terms.canonical) == terms
    with pytest.raises((FieldError, MarketTaskError, ValueError), match=words):
        opened(tmp_path, **changes(most + 1))


def test_terms_and_all_that_is_submitted_fit_one_message() -> None:
    """The room for terms shrinks with the rounds, each of which leaves ids."""

    def terms(rounds: int, tensors: int) -> Terms:
        specs = tuple(TensorSpec(f"{'long.' * 40}{i:06d}", "F32", (1,)) for i in range(tensors))
        few = samples.terms(rounds=1)
        return replace(
            few,
            schedule=replace(few.schedule, rounds=rounds),
            contract=replace(few.contract, tensors=specs, max_bytes=1 << 20),
        )

    with pytest.raises(FieldError, match="fewer rounds"):
        check_acceptable(terms(MAX_ROUNDS, 6_000))
    check_acceptable(terms(1, 6_000))
    check_acceptable(terms(MAX_ROUNDS, 2_000))
    with pytest.raises(FieldError, match="shorter names"):
        check_acceptable(terms(1, 12_000))


def test_a_header_that_others_would_write_too_long_is_refused(tmp_path: Path) -> None:
    """20,000 tensors with names of 256 characters do not fit a header, in whichever layout."""
    with pytest.raises(MarketTaskError, match=f"at most {MAX_MODEL_HEADER_BYTES} are accepted"):
        opened(tmp_path, weights=weights(MAX_TENSORS, "n" * 250 + "{:05d}"))


def test_names_that_some_write_as_escapes_are_counted_so() -> None:
    """The library's header is UTF-8, of which the coordinator accepts 4 MiB; another writer's may be six times it."""

    def specs(character: str) -> list[TensorSpec]:
        return [TensorSpec(character * 240 + f"{i:05d}", "F32", (1,)) for i in range(5_000)]

    assert len(header(specs("é"))) < MAX_MODEL_HEADER_BYTES
    with pytest.raises(ModelFileError, match="need a header"):
        check_header(specs("é"))
    check_header(specs("e"))


def reference(denominator: int) -> tuple[Fraction, ...]:
    """Four probabilities over one denominator."""
    return (Fraction(1, denominator),) * 3 + (Fraction(denominator - 3, denominator),)


def test_a_reference_over_which_no_degree_can_be_written_is_refused(tmp_path: Path) -> None:
    terms = opened(tmp_path)
    fits, beyond = 10**44 + 7, 10**60 + 7
    check_acceptable(replace(terms, reference=reference(fits)))
    with pytest.raises(FieldError, match=f"in {MAX_NUMBER_CHARACTERS} characters") as caught:
        check_acceptable(replace(terms, reference=reference(beyond)))
    assert caught.value.field == "reference"
    # Each of these has a short denominator; together they have none.
    primes = [p for p in range(2, 300) if all(p % q for q in range(2, p))][:60]
    shares = [Fraction(n, 60 * p) for p in primes for n in (1, p - 1)]
    with pytest.raises(FieldError, match="common denominator"):
        check_acceptable(replace(terms, reference=tuple(shares)))


def test_peers_that_no_entry_lists_are_refused(tmp_path: Path) -> None:
    terms = opened(tmp_path, schedule={"rounds": 1, "quorum": 3, "capacity": 5_000})
    with pytest.raises(FieldError, match=r"rule\.peers is 5000; expected at most") as caught:
        check_acceptable(replace(terms, rule=replace(terms.rule, peers=5_000)))
    most = int(caught.value.expected.split()[2].rstrip(","))
    check_acceptable(replace(terms, rule=replace(terms.rule, peers=most)))
    with pytest.raises(FieldError, match=f"at most {most}"):
        check_acceptable(replace(terms, rule=replace(terms.rule, peers=most + 1)))
    assert len(canonical_bytes(["z" * 64, ["z" * 64] * most])) <= entries.PART_BYTES
    # More than there can be are as many as there are.
    few = replace(terms, schedule=replace(terms.schedule, capacity=5))
    check_acceptable(replace(few, rule=replace(few.rule, peers=5_000)))


def test_a_first_model_that_no_participant_could_send_is_refused(tmp_path: Path) -> None:
    def refused(words: str, field: type[Exception] = MarketTaskError, **changes: Any) -> None:
        with pytest.raises(field, match=words):
            opened(tmp_path, **changes)

    bad = {"w": np.array([1.0, np.nan], np.float32)}
    refused("'w' has 1 values that are NaN or infinite", weights=bad)
    refused("contract.max_norm", FieldError, contract={"max_norm": "1"})
    refused("contract.max_norm", FieldError, contract={"max_norm": "0"})
    refused("contract.max_bytes", FieldError, contract={"max_bytes": 0})
    refused("contract.max_bytes", FieldError, contract={"max_bytes": 4_900})
    config = task_config(tmp_path)
    assert config.initial_model is not None
    config.initial_model.write_bytes(b"not a model")
    with pytest.raises(MarketTaskError, match="not a safetensors file"):
        prepare_task(config, 1_000.0)
    content = encode_model({"w": np.ones(4, np.float32)})
    config.initial_model.write_bytes(content.replace(b"F32", b"U32"))
    with pytest.raises(MarketTaskError, match="'U32'; expected one of F64, F32, F16, BF16"):
        prepare_task(config, 1_000.0)


def test_what_the_evidence_cannot_read_is_refused_by_its_reason(tmp_path: Path) -> None:
    """Evidence is made of small updates in the architecture's own type."""
    from fedpeer.learning.models import initial_weights

    own = initial_weights("digits-cnn", 0)
    common: dict[str, Any] = {
        "recipe": {"model": "digits-cnn"},
        "data": {"dataset": "digits"},
        "reference": ["1/10"] * 10,
        "schedule": {"rounds": 1},
    }
    half = {n: w.astype(np.float16) if w.dtype == np.float32 else w for n, w in own.items()}
    with pytest.raises(MarketTaskError, match=r"is F16 of shape .* expected F32"):
        opened(tmp_path, weights=half, **common)
    other = {**own, "extra": np.zeros(2, np.float32)}
    with pytest.raises(MarketTaskError, match=r"'extra' is F32 of shape .* expected absent"):
        opened(tmp_path, weights=other, **common)
    opened(tmp_path, weights=own, **common)


def test_the_samples_of_the_ledger_are_acceptable() -> None:
    check_acceptable(samples.terms())
    with pytest.raises(FieldError, match="reference"):
        check_acceptable(replace(samples.terms(), reference=(Fraction(1, 2001),) * 2001, Q=Decimal(2000)))


def test_names_that_do_not_fit_a_message_are_named() -> None:
    """Names of columns take up to three bytes a character; the terms travel in one message."""
    wide = tuple(f"{i:04d}" + "\u20ac" * 252 for i in range(3_000))
    columns = Columns(wide, "delay", "array")
    with pytest.raises(FieldError, match="fewer inputs, shorter names") as refused:
        check_acceptable(replace(samples.brought(Labels()), columns=columns))
    assert refused.value.field == "columns"
    for strata in samples.STRATA:
        check_acceptable(samples.brought(strata))
