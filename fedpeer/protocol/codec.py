"""Between messages and values: signed statements and verdicts.

What is signed travels as its canonical bytes, and is read from them here: strictly, so that what is checked by its
signature is what is acted upon. What is wrong comes back as a FieldError that names the field.
"""

from typing import TypeVar

from fedpeer.protocol.limits import MAX_STATEMENT_BYTES
from fedpeer.v1 import market_pb2
from mechanism.errors import FieldError
from mechanism.settlement import Verdict
from mechanism.statements import ClaimStatement, ModelStatement, Statement

Said = TypeVar("Said", ClaimStatement, ModelStatement)


def encode_signed(statement: Statement, signature: bytes) -> market_pb2.Signed:
    """The message that carries a statement and its signature."""
    return market_pb2.Signed(statement=statement.canonical, signature=signature)


def decode_signed(kind: type[Said], message: market_pb2.Signed) -> Said:
    """The statement in `message`, whose signature is still to be checked.

    Raises:
        FieldError: more bytes than a statement has, no canonical JSON, or no statement of this kind.
    """
    size = len(message.statement)
    if size > MAX_STATEMENT_BYTES:
        raise FieldError("statement", f"{size} bytes", f"at most {MAX_STATEMENT_BYTES}")
    return kind.parse(message.statement)


def encode_verdict(verdict: Verdict) -> market_pb2.Verdict:
    return market_pb2.Verdict(
        screen=verdict.screen,
        passed=verdict.passed,
        explanation=verdict.explanation,
        figures=dict(verdict.figures),
    )


def decode_verdict(message: market_pb2.Verdict) -> Verdict:
    return Verdict(message.screen, message.passed, message.explanation, dict(message.figures))
