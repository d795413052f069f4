"""One notice on its way: a signed webhook, or a mail. Nothing of it is tried again here.

A webhook is a CloudEvent in its JSON form (CloudEvents 1.0, structured mode), signed as Standard Webhooks 1.0 says:

    webhook-id         the event's id, the same at every attempt
    webhook-timestamp  seconds since the epoch, of this attempt
    webhook-signature  "v1," and base64 of HMAC-SHA256(secret, "ID.TIMESTAMP.BODY")
"""

import asyncio
import base64
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from coordinator.config import MailSection, ReceiverSection, secret_bytes
from coordinator.errors import ServeError
from fedpeer.extras import missing
from fedpeer.terminal import printable

if TYPE_CHECKING:
    import httpx

#: Seconds that one attempt may take, from the name's look-up to the answer.
SECONDS = 10.0

#: Characters of a text in a notice, and members of a list: a notice is read by people, and bounded whatever it quotes.
_CHARACTERS, _MEMBERS = 500, 50

_CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"

#: Answers that another attempt may change, besides all of 500 and above.
_PASSING = {
    HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS,
}  # fmt: skip


class NotSent(Exception):
    """A notice did not arrive, or its receiver has not said so.

    Attributes:
        lasting: whether the receiver refuses this very notice.
        retry_after: seconds for which the receiver asks to be left alone.
    """

    def __init__(self, why: str, *, lasting: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.lasting = lasting
        self.retry_after = retry_after


@dataclass(frozen=True)
class Event:
    """What has happened, for one receiver.

    Attributes:
        id: the same at every attempt, and for every receiver.
        source: the market.
        type: such as "round.settled".
        subject: the task, or what else it is about; empty: nothing.
        at: seconds since the epoch.
        text: a sentence for people.
    """

    id: str
    source: str
    type: str
    subject: str
    at: float
    text: str
    data: Mapping[str, Any]

    def body(self) -> bytes:
        """The CloudEvent as JSON, at most some 100 kB."""
        event = {
            "specversion": "1.0",
            "id": self.id,
            "source": f"/markets/{self.source}",
            "type": f"fedpeer.{self.type}",
            **({"subject": self.subject} if self.subject else {}),
            "time": datetime.fromtimestamp(self.at, UTC).isoformat().replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": _bounded({"text": self.text, **self.data}),
        }
        return json.dumps(event, ensure_ascii=False).encode()


def signature(secret: str, id_: str, timestamp: int, body: bytes) -> str:
    """The value of webhook-signature."""
    signed = b"%s.%d.%s" % (id_.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(secret_bytes(secret), signed, 'sha256')).decode()}"


class NoticeSender:
    """Sends notices; one for a service. Raises ServeError where what it needs is not installed."""

    def __init__(self, mail: MailSection) -> None:
        try:
            import aiosmtplib
            import httpx
        except ImportError as error:
            raise ServeError(f"[notices] cannot be served: {missing(error) or error}") from None
        self._mail, self._smtp, self._httpx = mail, aiosmtplib, httpx
        #: No redirects: a notice goes where the operator has said.
        self._client = httpx.AsyncClient(timeout=SECONDS, follow_redirects=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(self, receiver: ReceiverSection, event: Event, now: float) -> None:
        """One attempt.

        Args:
            now: seconds since the epoch, which the signature names.

        Raises:
            NotSent: why; without the receiver's address, which may hold a password.
        """
        try:
            async with asyncio.timeout(SECONDS):
                if receiver.url.startswith("mailto:"):
                    await self._write(receiver, event)
                else:
                    await self._call(receiver, event, now)
        except TimeoutError:
            raise NotSent(f"it did not answer within {SECONDS:g} seconds") from None

    async def _call(self, receiver: ReceiverSection, event: Event, now: float) -> None:
        body, timestamp = event.body(), int(now)
        headers = {
            "content-type": _CONTENT_TYPE,
            "user-agent": "fedpeer",
            "webhook-id": event.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(receiver.secret, event.id, timestamp, body),
        }
        try:
            # The answer's body is nothing to us, however long it is: the connection is left where it begins.
            async with self._client.stream("POST", receiver.url, content=body, headers=headers) as answer:
                _check(answer)
        except (self._httpx.HTTPError, self._httpx.InvalidURL) as error:
            raise NotSent(f"it cannot be reached ({type(error).__name__})") from None

    async def _write(self, receiver: ReceiverSection, event: Event) -> None:
        mail, (host, _, port) = self._mail, self._mail.server.rpartition(":")
        letter = EmailMessage()
        letter["From"], letter["To"] = mail.sender, unquote(urlsplit(receiver.url).path)
        letter["Subject"] = printable(f"{event.source}: {event.text}")[:_CHARACTERS]
        letter["Message-ID"] = f"<{event.id}@{event.source.replace('/', '.')}>"
        letter["Date"] = datetime.fromtimestamp(event.at, UTC)
        letter.set_content(
            f"{event.text}\n\n{json.dumps(_bounded(event.data), indent=2, ensure_ascii=False)}\n"
        )
        try:
            await self._smtp.send(
                letter,
                hostname=host.strip("[]"),
                port=int(port),
                username=mail.user or None,
                password=mail.password or None,
                use_tls=mail.security == "tls",
                start_tls=mail.security == "starttls",
                timeout=SECONDS,
            )
        except self._smtp.SMTPException as error:
            code = getattr(error, "code", None)
            said = "" if code is None else f", code {code}"
            raise NotSent(f"the mail server did not take it ({type(error).__name__}{said})") from None
        except OSError as error:
            raise NotSent(f"the mail server cannot be reached ({error.strerror or error})") from None


def _check(answer: "httpx.Response") -> None:
    """Raises NotSent where an answer is not a success."""
    if answer.is_success:
        return
    status = answer.status_code
    asked = answer.headers.get("retry-after", "")
    raise NotSent(
        f"it answered {status}",
        lasting=status < 500 and status not in _PASSING,
        retry_after=float(asked) if asked.isascii() and asked.isdigit() else 0.0,
    )


def _bounded(value: Any) -> Any:
    """`value` with its texts and lists cut to what a notice may carry."""
    if isinstance(value, str):
        return value if len(value) <= _CHARACTERS else f"{value[: _CHARACTERS - 1]}…"
    if isinstance(value, Mapping):
        return {key: _bounded(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_bounded(held) for held in value[:_MEMBERS]]
    return value
