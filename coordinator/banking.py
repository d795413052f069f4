"""What goes to banks: currencies, account numbers, and the files by which a payout run is paid.

A run is a CSV file, and an ISO 20022 credit transfer (pain.001.001.09) where the extra fedpeer[payouts] is there, the
operator's own account is known and the currency has cents. The same run gives the same bytes: banks refuse a message
whose id they have seen.
"""

import csv
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from coordinator.config import MAX_HOLDER, PayoutsSection, PriceSection
from coordinator.errors import ConfigError, FolderError, PayoutError
from coordinator.storage.payouts import PayoutLineRow, PayoutRow
from fedpeer.audit.export import csv_cell, replaced
from fedpeer.extras import unmet
from mechanism.errors import FieldError
from mechanism.ledger.entries import timestamp
from mechanism.price import Price, credits_text

#: The version of the message that SEPA takes since 2023.
PAIN = "pain.001.001.09"

#: Decimal places that the library writes amounts with.
_CENTS = 2


@dataclass(frozen=True)
class PaymentFiles:
    """A run as files: the CSV, the message, and why there is no message where it is None."""

    csv: bytes
    message: bytes | None
    why: str


def priced(section: PriceSection) -> Price:
    """The price of a credit; ISO 4217 says the currency's minor unit.

    Raises:
        FieldError: no currency that money is paid in.
    """
    from iso4217 import Currency  # only tasks with a price need it

    try:
        places = Currency(section.currency).exponent
    except ValueError:
        places = None
    if places is None:
        raise FieldError(
            "price.currency",
            section.currency,
            "the code of a currency with a minor unit in ISO 4217, such as EUR or JPY",
        )
    return Price(section.credit, section.currency, places)


def checked_account(holder: str, iban: str, bic: str) -> tuple[str, str, str]:
    """Holder, IBAN and BIC in their plain forms.

    Raises:
        PayoutError: the IBAN's check digits, its country's form or the BIC are wrong; or the extra is not there.
    """
    if (sentence := unmet("coordinator payout account")) is not None:
        raise PayoutError(sentence)
    from schwifty import BIC, IBAN
    from schwifty.exceptions import SchwiftyException

    name = " ".join(holder.split())
    if not 1 <= len(name) <= MAX_HOLDER or not name.isprintable():
        raise PayoutError(
            f"the holder {holder!r:.100} cannot be used; expected a name of 1 to {MAX_HOLDER} characters, as the bank "
            "has it"
        )
    try:
        account = IBAN(iban).compact
    except SchwiftyException as error:
        raise PayoutError(
            f"{iban!r:.60} is no IBAN: {error}; copy it from the holder's own paper once more"
        ) from None
    try:
        return name, account, BIC(bic).compact if bic else ""
    except SchwiftyException as error:
        raise PayoutError(f"{bic!r:.30} is no BIC: {error}; leave it out where the IBAN is enough") from None


def checked_payer(section: PayoutsSection) -> PayoutsSection | None:
    """The operator's own account in plain form; None where the configuration names none.

    Raises:
        ConfigError: it cannot be used.
    """
    if not section.iban:
        return None
    try:
        holder, iban, bic = checked_account(section.holder, section.iban, section.bic)
    except PayoutError as error:
        raise ConfigError(f"coordinator.toml, [payouts]: {error}") from None
    return PayoutsSection(holder=holder, iban=iban, bic=bic)


def message_id(log: str, number: int) -> str:
    """What names a run to the bank, for ever: at most 35 of the characters that SEPA allows."""
    return f"FEDPEER-{hashlib.sha256(log.encode()).hexdigest()[:8].upper()}-{number}"


def payment_files(
    log: str, run: PayoutRow, lines: Sequence[PayoutLineRow], payer: PayoutsSection | None
) -> PaymentFiles:
    """The files of a run.

    Args:
        log: name of the coordinator, which stands in each payment.
        lines: in the order of their participants.
        payer: the operator's account, as `checked_payer` gives it.
    """
    table, why = _csv(log, run, lines), ""
    if unmet("coordinator payout account") is not None:
        why = "the extra fedpeer[payouts] is not installed"
    elif payer is None:
        why = "coordinator.toml names no account of yours under [payouts]"
    elif run.minor_unit != _CENTS:
        why = f"{run.currency} has {run.minor_unit} decimal places; the message is written for two"
    return PaymentFiles(table, None if why or payer is None else _message(log, run, lines, payer), why)


def ready_folder(folder: Path) -> None:
    """Makes the folder that a run's files go to. Raises FolderError where nothing can be written there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FolderError(
            f"{folder} cannot take the payout's files: {error.strerror}; nothing was changed; name another folder "
            "with --output"
        ) from None


def write_files(folder: Path, number: int, files: PaymentFiles) -> list[Path]:
    """Writes a run's files over those that are there, for the operator's eyes alone; returns where they are.

    Args:
        folder: as `ready_folder` has made it.

    Raises:
        FolderError: they cannot be written. The run stands all the same: the same call writes them again.
    """
    made = {f"payout-{number}.csv": files.csv, f"payout-{number}.xml": files.message}
    written = []
    for name, data in made.items():
        if data is not None:
            with replaced(folder / name, 0o600) as file:
                file.write(data)
            written.append(folder / name)
    return written


def _csv(log: str, run: PayoutRow, lines: Sequence[PayoutLineRow]) -> bytes:
    text, price = io.StringIO(), run.price
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("reference", "participant", "holder", "iban", "bic", "amount", "currency", "credits", "text")
    )
    for place, line in enumerate(lines, 1):
        cells = (
            f"{message_id(log, run.number)}-{place}", line.participant_id, line.holder, line.iban, line.bic,
            price.number(line.units), run.currency, credits_text(line.micro),
            _purpose(log, run, line),
        )  # fmt: skip
        writer.writerow([csv_cell(cell) for cell in cells])
    return text.getvalue().encode()


def _purpose(log: str, run: PayoutRow, line: PayoutLineRow) -> str:
    return f"{log}, payout {run.number}, {line.participant_id}"


def _message(log: str, run: PayoutRow, lines: Sequence[PayoutLineRow], payer: PayoutsSection) -> bytes:
    from sepaxml import SepaTransfer

    account = {"IBAN": payer.iban} | ({"BIC": payer.bic} if payer.bic else {})
    made = SepaTransfer(
        {
            "name": payer.holder, "currency": run.currency, "batch": True, "domestic": run.currency != "EUR", **account,
        },
        schema=PAIN,
    )  # fmt: skip
    name = message_id(log, run.number)
    for place, line in enumerate(lines, 1):
        payment: dict[str, Any] = {
            "name": line.holder,
            "IBAN": line.iban,
            "amount": line.units,
            "description": _purpose(log, run, line),
            "execution_date": datetime.fromtimestamp(run.began_at, UTC).date(),
            "endtoend_id": f"{name}-{place}",
        }
        made.add_payment(payment | ({"BIC": line.bic} if line.bic else {}))
    data: bytes = made.export(validate=True)
    # The library takes the clock and random numbers for these; a second file of the run would be another message.
    fixed = {"MsgId": name, "CreDtTm": timestamp(run.began_at).removesuffix("Z"), "PmtInfId": name}
    for tag, text in fixed.items():
        data = re.sub(rf"<{tag}>[^<]*".encode(), f"<{tag}>{text}".encode(), data)
    return data
