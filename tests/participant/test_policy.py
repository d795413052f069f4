"""What an owner's policy declines, and that nothing is sent then."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from mechanism.ledger.note import SigningKey
from mechanism.price import Price
from mechanism.privacy import Privacy
from mechanism.terms import Terms
from participant.accounting import PrivacyLimit
from participant.config import read_config
from participant.effort import Fixed
from participant.engagement import OwnerRules
from participant.errors import ConfigurationError, DeclinedError
from participant.journal import LOG_KEY, Journal
from participant.policy import Policy
from participant.work import LocalTrainer, ignore_activity, run_task
from tests.participant.simulated_market import Cats, SimulatedMarket, terms
from tests.participant.test_steps_under_faults import engage

NOISE = Privacy("dp-sgd", Decimal(1), Decimal(2), Decimal("0.00001"))


def with_recipe(**changes: Any) -> Terms:
    return replace(terms(), recipe=replace(terms().recipe, **changes))


def kept_for(seconds: int | None) -> Terms:
    return replace(terms(), schedule=replace(terms().schedule, retention_seconds=seconds))


@pytest.mark.parametrize(
    ("policy", "other", "fitting", "said"),
    [
        (Policy(reference=["1/2", "0.5"]), replace(terms(), reference=(Fraction(1, 3), Fraction(2, 3))), terms(),
         "its reference is 1/3, 2/3; accepted is 1/2, 1/2"),
        (Policy(reference={"1": "1/3", "0": "2/3"}), terms(),
         replace(terms(), reference=(Fraction(2, 3), Fraction(1, 3))), "accepted is 2/3, 1/3"),
        (Policy(models=["flights:make"]), terms(), with_recipe(model="digits-cnn"), "its model is custom"),
        (Policy(most_epochs=3), with_recipe(epochs=4), with_recipe(epochs=3), "4 epochs; accepted are at most 3"),
        (Policy(most_samples=10), with_recipe(samples=11), terms(), "11 samples"),
        (Policy(most_bytes=100_000), replace(terms(), contract=replace(terms().contract, max_bytes=100_001)),
         terms(), "100001 bytes of a model"),
        (Policy(privacy_required=True), terms(), with_recipe(privacy=NOISE), "privacy is required"),
        (Policy(retention_days=1), kept_for(86_401), kept_for(86_400), "kept for 86401 seconds"),
        (Policy(retention_days=1), kept_for(None), kept_for(0), "does not say when submitted models are deleted"),
    ],
)  # fmt: skip
def test_terms_that_do_not_fit_are_declined(policy: Policy, other: Terms, fitting: Terms, said: str) -> None:
    with pytest.raises(DeclinedError, match="policy") as declined:
        policy.check(other, None)
    assert said in str(declined.value)
    if not policy.models:
        policy.check(fitting, None)


def test_all_reasons_are_said_together() -> None:
    policy = Policy(models=["flights:make"], most_epochs=1, retention_days=3, privacy_required=True)
    with pytest.raises(DeclinedError) as declined:
        policy.check(with_recipe(epochs=2), None)
    assert len(declined.value.reasons) == 4


def test_the_owners_own_noise_counts() -> None:
    Policy(privacy_required=True).check(terms(), NOISE)


def test_epsilon_of_all_rounds_together() -> None:
    pytest.importorskip("opacus")
    few, many = with_recipe(privacy=NOISE), replace(with_recipe(privacy=NOISE), schedule=terms(50).schedule)
    policy = Policy(most_epsilon=PrivacyLimit(Decimal(4)))
    policy.check(few, None)
    with pytest.raises(DeclinedError, match="its 50 rounds together have epsilon"):
        policy.check(many, None)
    with pytest.raises(DeclinedError, match="without noise"):
        policy.check(terms(), None)


def test_least_pay_is_that_of_the_claimed_counts() -> None:
    # f(Q / (2 phi delta^2 + upsilon)) = log(100 / (20 * 0.25^2 + 1)) at delta 1/4, and log(100) at 0
    paid = Decimal("3.7942")
    policy = Policy(least_pay=paid - Decimal("0.0001"))
    policy.check_pay(terms(), [30, 10])
    with pytest.raises(DeclinedError, match=r"a round pays"):
        Policy(least_pay=paid + Decimal("0.0001")).check_pay(terms(), [30, 10])
    Policy(least_pay=paid + Decimal("0.0001")).check_pay(terms(), [20, 20])


def test_least_pay_in_money_needs_a_price() -> None:
    policy = Policy(least_pay="1.80 EUR")
    with pytest.raises(DeclinedError, match="it has no price"):
        policy.check_pay(terms(), [30, 10])
    dear = replace(terms(), price=Price(Decimal("0.5"), "EUR", 2))
    policy.check_pay(dear, [30, 10])  # 3.794 credits are 1.897 EUR
    with pytest.raises(DeclinedError, match=r"accepted are at least 3\.8000"):
        Policy(least_pay="1.90 EUR").check_pay(dear, [30, 10])
    with pytest.raises(DeclinedError, match="a price in EUR"):
        Policy(least_pay="1 USD").check_pay(dear, [30, 10])


@pytest.mark.parametrize(
    "values",
    [
        {"reference": ["1/2", "1/3"]},
        {"reference": ["1/2", "x"]},
        {"coordinator_keys": ["nonsense"]},
        {"least_pay": "much"},
        {"least_pay": "1 euro"},
        {"least_pay": -1},
        {"most_epochs": 0},
        {"retention_days": -1},
    ],
)
def test_a_policy_that_cannot_be_used(values: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"policy\."):
        Policy(**values)


def run(market: SimulatedMarket, folder: Path, rules: OwnerRules, before: Any = None) -> Journal:
    journal = Journal(folder / "journal.db")
    try:
        if before is not None:
            before(journal)
        engagement = engage(market, folder, journal, rules)
        market.run(run_task(engagement, LocalTrainer(Cats()), Fixed(0.0), ignore_activity))
        return journal
    finally:
        journal.close()


def declined(folder: Path) -> list[tuple[str, str]]:
    journal = Journal(folder / "journal.db", writer=False)
    try:
        return journal.declined()
    finally:
        journal.close()


@pytest.mark.parametrize("policy", [Policy(most_samples=1), Policy(least_pay=4)])
def test_nothing_is_sent_and_the_reason_is_kept(policy: Policy, tmp_path: Path) -> None:
    market = SimulatedMarket()
    with pytest.raises(DeclinedError) as error:
        run(market, tmp_path, OwnerRules(policy))
    assert not market.receipts
    assert declined(tmp_path) == [("cats-1", "; ".join(error.value.reasons))]
    run(market, tmp_path, OwnerRules())
    assert market.receipts
    assert not declined(tmp_path)


def test_a_claimed_task_is_brought_to_its_end(tmp_path: Path) -> None:
    market = SimulatedMarket()

    class Gone(BaseException):
        pass

    def fault(number: int) -> str:
        if market.claims:
            raise Gone
        return ""

    market.fault = fault
    with pytest.raises(Gone):
        run(market, tmp_path, OwnerRules())
    market.fault = lambda number: ""
    run(market, tmp_path, OwnerRules(Policy(most_samples=1, least_pay=9)))
    assert set(market.models) == {1, 2}


def test_the_logs_key_is_one_that_is_trusted(tmp_path: Path) -> None:
    key, other = (str(SigningKey("log", 1, bytes([n]) * 32).verification_key) for n in (1, 2))
    market = SimulatedMarket()
    market._GetCheckpoint = lambda request: _checkpoint(key)  # type: ignore[method-assign]
    with pytest.raises(DeclinedError, match="its log has the key"):
        run(market, tmp_path, OwnerRules(Policy(coordinator_keys=[other])))
    assert not market.receipts
    run(market, tmp_path, OwnerRules(Policy(coordinator_keys=[other, key])))
    assert market.receipts
    journal = Journal(tmp_path / "journal.db", writer=False)
    assert journal.meta(LOG_KEY) == key
    journal.close()


def _checkpoint(key: str) -> Any:
    from fedpeer.v1 import ledger_pb2

    return ledger_pb2.Checkpoint(verification_key=key)


def test_a_limit_declines_a_task_without_noise(tmp_path: Path) -> None:
    market = SimulatedMarket()
    with pytest.raises(DeclinedError, match="tell without a bound"):
        run(market, tmp_path, OwnerRules(limit=PrivacyLimit(Decimal(1))))
    assert not market.receipts


CONFIG = """
id = "clinic"
[coordinator]
market = "localhost:1"
insecure = true
[policy]
reference = { cat = "1/3", dog = 0.5, cow = "1/6" }
models = ["flights:make"]
least_pay = 1.5
most_epsilon = { epsilon = 4 }
retention_days = 30
[privacy]
epsilon = 8
delta = 1e-6
[[task]]
factory = "a:b"
privacy = { method = "update", clip = 0.1, noise_multiplier = 2, delta = 1e-5 }
"""


def test_a_policy_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"
    path.write_text(CONFIG)
    config = read_config(path)
    policy = config.policy.build()
    assert policy.reference == {"cat": "1/3", "dog": "0.5", "cow": "1/6"}
    assert policy.most_epsilon == PrivacyLimit(Decimal(4))
    assert config.privacy is not None
    assert config.privacy.build() == PrivacyLimit(Decimal(8), Decimal("0.000001"))
    noise = config.task[0].privacy
    assert noise is not None
    assert noise.build() == Privacy("update", Decimal("0.1"), Decimal(2), Decimal("0.00001"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("retention_days = 30", "retention = 30", "retention"),
        ('"1/6"', '"1/5"', "policy.reference sums to"),
        ("epsilon = 8", "epsilon = 0", "epsilon is 0"),
        ("clip = 0.1", "clip = 0", "privacy.clip"),
        ('method = "update"', 'method = "magic"', "privacy.method"),
        ("delta = 1e-6", 'delta = "soon"', "delta"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "participant.toml"
    assert old in CONFIG
    path.write_text(CONFIG.replace(old, new, 1))
    with pytest.raises(ConfigurationError, match=r"participant\.toml") as error:
        read_config(path)
    assert said in str(error.value)
