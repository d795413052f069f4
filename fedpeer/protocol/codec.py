"""Between messages and values: signed statements and verdicts.

What is signed travels as its canonical bytes, and is read from them here: strictly, so that what is checked by its
signature is what is acted upon. What is wrong comes back as a FieldError that names the field.
"""

from dataclasses import fields
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from fedpeer.protocol.limits import MAX_STATEMENT_BYTES
from fedpeer.v1 import market_pb2
from mechanism.errors import FieldError
from mechanism.settlement import Verdict
from mechanism.statements import (
    ClaimOpening,
    ClaimStatement,
    ModelOpening,
    ModelStatement,
    Statement,
    StatementOpening,
    check_opened,
)

Said = TypeVar("Said", ClaimStatement, ModelStatement)
Opened = TypeVar("Opened", ClaimOpening, ModelOpening)
Value = TypeVar("Value")


def encode_signed(statement: Statement, signature: bytes, opening: StatementOpening) -> market_pb2.Signed:
    """The message that carries a statement, its signature, and what it commits to."""
    return market_pb2.Signed(statement=statement.canonical, signature=signature, opening=opening.canonical)


def decode_signed(kind: type[Said], message: market_pb2.Signed) -> Said:
    """The statement in `message`, whose signature is still to be checked.

    Raises:
        FieldError: more bytes than a statement has, no canonical JSON, or no statement of this kind.
    """
    return kind.parse(_limited("statement", message.statement))


def decode_opening(kind: type[Opened], statement: Statement, message: market_pb2.Signed) -> Opened:
    """What the statement in `message` commits to.

    Raises:
        FieldError: more bytes than an opening has, no opening of this kind, or another than the statement's.
    """
    opening = kind.parse(_limited("opening", message.opening))
    check_opened(statement, opening)
    return opening


def _limited(field: str, data: bytes) -> bytes:
    if len(data) > MAX_STATEMENT_BYTES:
        raise FieldError(field, f"{len(data)} bytes", f"at most {MAX_STATEMENT_BYTES}")
    return data


def encode_verdict(verdict: Verdict) -> market_pb2.Verdict:
    return market_pb2.Verdict(**verdict.record())  # type: ignore[arg-type]  # its fields are the message's


def decode_verdict(message: market_pb2.Verdict) -> Verdict:
    return decode(Verdict, message, figures=dict(message.figures))


def decode(kind: type[Value], message: Message, **made: Any) -> Value:
    """A dataclass of the message's fields of the same names; `made`: those that are not as the message has them."""
    names = [field.name for field in fields(cast("Any", kind)) if field.name not in made]
    return kind(**{name: getattr(message, name) for name in names}, **made)
