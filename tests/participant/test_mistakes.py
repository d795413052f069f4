"""What a participant gets wrong: each ends in a sentence of the participant's own errors, and nothing is half done."""

import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechanism.cost import LinearCost
from participant import proxy
from participant.config import read_config
from participant.effort import BestResponse, Fixed, decision_of, explained, strategy_of
from participant.endpoint import Endpoint
from participant.enrolment import EnrolmentRequest
from participant.errors import ConfigurationError, EffortError, SubmittedError
from participant.identity import IdentityFolder
from participant.journal import Journal
from participant.model_store import write_weights
from tests.participant.simulated_market import SimulatedMarket, start_weights, terms
from tests.participant.test_steps_under_faults import engage


@pytest.mark.parametrize("effort", [Fixed(0.3), 0.3, lambda terms, counts: 0.3])
def test_only_a_best_response_can_be_explained(effort: Any) -> None:
    with pytest.raises(EffortError, match="expected a BestResponse"):
        explained(effort)
    assert explained(None) == BestResponse()


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (BestResponse(cost=lambda x: x), "expected a cost function"),  # type: ignore[arg-type]  # the mistake
        (BestResponse(curve=lambda start: 0.5), "the curve function gave 0.5"),  # type: ignore[arg-type, return-value]  # the mistake
        (BestResponse(curve=0.5), "the curve is 0.5"),  # type: ignore[arg-type]  # the mistake
        (strategy_of(lambda terms: 0.5), "raised TypeError"),  # type: ignore[arg-type, misc]  # the mistake
        (strategy_of(lambda terms, counts: 1 / 0), "raised ZeroDivisionError"),
        (strategy_of(lambda terms, counts: "much"), "expected a number from 0 to 1"),  # type: ignore[arg-type, return-value]  # the mistake
    ],
)
def test_a_strategy_that_cannot_be_used(strategy: Any, words: str) -> None:
    with pytest.raises(EffortError, match=words):
        decision_of(strategy, terms(), [30, 10])


def test_a_strategy_of_ones_own_that_decides_nothing() -> None:
    class Undecided:
        def decide(self, terms: Any, counts: Any) -> float:
            return 0.5

    with pytest.raises(EffortError, match=r"Undecided.decide returned 0.5; expected a Decision"):
        decision_of(Undecided(), terms(), [30, 10])  # type: ignore[arg-type]  # the mistake


def test_counts_that_make_no_histogram_cannot_be_explained() -> None:
    with pytest.raises(EffortError):
        BestResponse(cost=LinearCost(1.0)).explain(terms(), [-1, 10])


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    journal = Journal(tmp_path / "journal.db")
    yield journal
    journal.close()


def test_counts_that_no_statement_can_carry_leave_nothing(journal: Journal, tmp_path: Path) -> None:
    market = SimulatedMarket()
    engagement = engage(market, tmp_path, journal)
    with pytest.raises(EffortError, match="expected at most 9007199254740991"):
        market.run(engagement.claim(Decimal("0.5"), [10**30, 1]))
    assert engagement.claimed_counts is None
    market.run(engagement.claim(Decimal("0.5"), [30, 10]))


def test_a_claim_repeats_only_with_the_same_effort(journal: Journal, tmp_path: Path) -> None:
    market = SimulatedMarket()
    engagement = engage(market, tmp_path, journal)
    first = market.run(engagement.claim(Decimal("0.3"), [30, 10]))
    assert market.run(engagement.claim(Decimal("0.300000"), [30, 10])) == first
    with pytest.raises(EffortError, match=r"the effort is 0\.4, but 0\.3 was claimed"):
        market.run(engagement.claim(Decimal("0.4"), [30, 10]))
    assert len(market.claims) == 1


def test_a_round_takes_one_model(journal: Journal, tmp_path: Path) -> None:
    market = SimulatedMarket()
    engagement = engage(market, tmp_path, journal)
    market.run(engagement.claim(Decimal("0.3"), [30, 10]))

    def submit(step: float, samples: int) -> Any:
        weights = {
            n: a + np.float32(step) if a.dtype == np.float32 else a for n, a in start_weights().items()
        }
        write_weights(engagement.trained_path(1), weights, engagement.terms.contract)
        return market.run(engagement.submit(1, samples))

    first = submit(1.0, 40)
    assert submit(1.0, 40) == first
    with pytest.raises(SubmittedError, match="has a model already, with other weights;"):
        submit(2.0, 40)
    with pytest.raises(SubmittedError, match="with another number of samples"):
        submit(1.0, 41)
    assert not engagement.trained_path(1).exists()
    assert len(market.models[1]) == 1


def test_an_authority_that_is_no_certificate_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the given authority holds no certificate in PEM"):
        EnrolmentRequest(IdentityFolder(tmp_path), "ada", "token", b"<html>404</html>")


def test_an_effort_that_is_missing_is_named_with_its_task(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"
    path.write_text(
        'id = "ada"\n[coordinator]\nmarket = "localhost:1"\n[[task]]\nid = "a"\nfactory = "a:b"\n'
        '[[task]]\nid = "b"\nfactory = "a:b"\n[task.effort]\nstrategy = "fixed"\n'
    )
    with pytest.raises(ConfigurationError, match=r"task\.1\.effort\.effort is missing"):
        read_config(path)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("garbage", "https_proxy is not an address and is ignored"),
        ("socks5://me:secret@localhost:1080", "https_proxy is of the kind socks5:// and is ignored"),
        ("http://localhost:port", "https_proxy is not an address and is ignored"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str, words: str
) -> None:
    for name in ("grpc_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", value)
    monkeypatch.setattr(proxy, "_warned", set())
    with caplog.at_level(logging.WARNING, logger="participant"):
        Endpoint("market.example:7443")
        Endpoint("market.example:7444")
    [message] = caplog.messages
    assert words in message
    assert "secret" not in message
    assert proxy.proxy_for("market.example") is None


def test_a_proxy_that_can_be_used_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proxy, "_warned", set())
    proxy.warn_of_unusable_proxy("market.example", {"https_proxy": "http://proxy.example:3128"})
    proxy.warn_of_unusable_proxy("market.example", {"https_proxy": "garbage", "no_proxy": "example"})
    assert caplog.messages == []


def test_a_folder_around_a_state_folder_is_told_from_one_that_is_not_enrolled(tmp_path: Path) -> None:
    outer = tmp_path / "cellar"
    for place in ("state", "more/deep"):
        (outer / place).mkdir(parents=True)
        for name in ("key.pem", "certificate.pem"):
            (outer / place / name).touch()
    with pytest.raises(ConfigurationError) as refused:
        IdentityFolder(outer).credentials()
    assert f"{outer / 'more' / 'deep'} and {outer / 'state'} have one: name the state folder itself" in str(
        refused.value
    )
    with pytest.raises(ConfigurationError, match="enrol first"):
        IdentityFolder(outer / "more" / "deep" / "none").credentials()
