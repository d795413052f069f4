"""Every page: its address, who may see it, what it shows and what a form on it does. The one table is `PAGES`.

A page stands at an address that ends in a slash; the same record as JSON stands at that address with .json in the
slash's place, for the same roles. `site` holds the table against each request.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.operator import Notice, Operator
from fedpeer.audit.input_files import MAX_RECEIPT_BYTES
from fedpeer.audit.proofs import receipt
from fedpeer.audit.sources import open_source
from fedpeer.console import records
from fedpeer.console.oidc import RETURN_PATH, Oidc
from fedpeer.console.reading import NotThere
from fedpeer.console.sessions import Role, Visitor
from mechanism.lifecycle import State

if TYPE_CHECKING:
    from fedpeer.console.site import Console

EVERYBODY = frozenset(Role)
SIGNED_IN = EVERYBODY - {Role.PUBLIC}
AUDIT = frozenset({Role.AUDITOR, Role.OPERATOR})
OPERATOR = frozenset({Role.OPERATOR})
#: A participant and a learner see their own pages, and nobody else's.
OWN = frozenset({Role.PARTICIPANT, Role.OPERATOR})
FUNDER = frozenset({Role.LEARNER, Role.OPERATOR})


#: Bytes of a form: a task file is the longest but a receipt, and has some thousand. What a form writes as three bytes
#: makes a receipt a little longer than its file.
_FORM_BYTES, _RECEIPT_FORM_BYTES = 1 << 16, MAX_RECEIPT_BYTES * 5 // 4


class Mistake(ValueError):
    """Something in an address or a form that cannot be: the sentence says what was expected."""


@dataclass(frozen=True)
class Asked:
    """One request, whose visitor may see the page."""

    console: "Console"
    visitor: Visitor
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    #: host:port under which the console was called.
    host: str
    #: What the browser has shown, DER; TLS has checked it.
    certificate: bytes | None = None
    #: What the browser kept while somebody signed in elsewhere.
    kept: str | None = None

    def whole(self, name: str, value: str | None) -> int:
        """A number of an address.

        Raises:
            Mistake: it is none.
        """
        if value is None or not value.isascii() or not value.isdigit() or len(value) > 15:
            raise Mistake(f"{name} is {value!r:.60}; expected a whole number of at least 0.")
        return int(value)

    @property
    def round(self) -> int:
        return self.whole("The round", self.path["round"])


@dataclass(frozen=True)
class Shown:
    """A page: the template, and the record that it shows and that its JSON is."""

    template: str
    record: Mapping[str, Any]
    #: What only the page has, such as a token that is handed over once.
    more: Mapping[str, Any] = field(default_factory=dict)
    #: Whom it signs in.
    visitor: Visitor | None = None


@dataclass(frozen=True)
class Text:
    """A file."""

    content: str
    kind: str
    name: str


@dataclass(frozen=True)
class Content:
    """What is shown within a page, such as a picture."""

    content: bytes
    kind: str


@dataclass(frozen=True)
class Moved:
    """What a form has done is seen elsewhere; with the visitor that it signs in or out, where it does."""

    to: str
    visitor: Visitor | None = None
    #: What the browser keeps meanwhile.
    kept: str = ""


Answer = Shown | Text | Content | Moved


@dataclass(frozen=True)
class Page:
    """One address.

    Attributes:
        roles: who may see it. Where the market keeps its ledger from the public (`server.public_ledger`), the public
            sees only what is `open`.
        show: what a GET shows; None: only forms lead there.
        act: what a POST does; None: nothing.
        open: for the public of any market.
        harmless: what its form does changes nothing, so that it needs no session.
        form_bytes: of its form, at most.
    """

    path: str
    roles: frozenset[Role]
    show: Callable[[Asked], Answer] | None
    act: Callable[[Asked], Answer] | None = None
    open: bool = False
    harmless: bool = False
    form_bytes: int = _FORM_BYTES

    @property
    def json_path(self) -> str | None:
        """Where its record stands as JSON; None for files and for what has no record."""
        if self.show is None or not self.path.endswith("/"):
            return None
        return "/index.json" if self.path == "/" else f"{self.path[:-1]}.json"


def _front(asked: Asked) -> Answer:
    reader = asked.console.reader
    return Shown("front.html", reader.record("front", lambda t: records.market(t, reader.config.name)))


def _task(asked: Asked) -> Answer:
    name = asked.path["task"]
    return Shown("task.html", asked.console.reader.record(("task", name), lambda t: records.task(t, name)))


def _leaderboard(asked: Asked) -> Answer:
    name = asked.path["task"]
    record = asked.console.reader.record(("leaderboard", name), lambda t: records.leaderboard(t, name))
    return Shown("leaderboard.html", record)


def _results(asked: Asked) -> Answer:
    return Shown("results.html", asked.console.results.record())


def _result(asked: Asked) -> Answer:
    content, kind = asked.console.results.file(asked.path["file"])
    return Content(content, kind)


def _alarms(asked: Asked) -> Answer:
    return Shown("alarms.html", {"alarms": asked.console.service.record()["alarms"]})


def _printed(asked: Asked) -> Answer:
    name = asked.path["name"]
    reader = asked.console.reader
    record = reader.record(("participant", name), lambda t: records.participant(t, name))
    return Shown("statement.html", {**record, "market": reader.config.name, "written": reader.now()})


def _ledger(asked: Asked) -> Answer:
    end = asked.whole("end", asked.query["end"]) if "end" in asked.query else None
    return Shown(
        "ledger.html", asked.console.reader.record(("ledger", end), lambda t: records.ledger(t, end))
    )


def _entry(asked: Asked) -> Answer:
    index = asked.whole("The entry's index", asked.path["index"])
    record = asked.console.reader.record(("entry", index), lambda t: records.ledger_entry(t, index))
    return Shown("entry.html", record)


def _receipt(asked: Asked) -> Answer:
    index = asked.whole("The entry's index", asked.path["index"])
    record = asked.console.reader.record(("entry", index), lambda t: records.ledger_entry(t, index))
    if not record["covered"]:
        raise NotThere(f"No signed head covers entry {index} yet; ask again in a moment.")
    with ExitStack() as resources:
        text = str(receipt(open_source(asked.console.reader.url, resources), index))
    return Text(text, "text/plain", f"entry-{index}.tlog-proof")


def _ask_receipt(asked: Asked) -> Answer:
    return Shown("receipt.html", {"receipt": "", "holds": None, "said": "", "entry": None})


def _check_receipt(asked: Asked) -> Answer:
    text = asked.form.get("receipt", "").replace("\r\n", "\n")
    with ExitStack() as resources:
        record = records.receipt(open_source(asked.console.reader.url, resources), text)
    return Shown("receipt.html", record)


def _participant(asked: Asked) -> Answer:
    name = asked.path["name"]
    record = asked.console.reader.record(("participant", name), lambda t: records.participant(t, name))
    return Shown("participant.html", record)


def _statement(asked: Asked) -> Answer:
    name = asked.path["name"]
    record = asked.console.reader.record(("participant", name), lambda t: records.participant(t, name))
    return _table(records.statement(record), f"{name}.csv")


def _learner_record(asked: Asked) -> dict[str, Any]:
    name = asked.path["learner"]
    return asked.console.reader.record(("learner", name), lambda t: records.learner(t, name))


def _learner(asked: Asked) -> Answer:
    return Shown("learner.html", _learner_record(asked))


def _learner_printed(asked: Asked) -> Answer:
    reader = asked.console.reader
    record = {**_learner_record(asked), "market": reader.config.name, "written": reader.now()}
    return Shown("learner_statement.html", record)


def _learner_statement(asked: Asked) -> Answer:
    return _table(records.learner_statement(_learner_record(asked)), f"learner-{asked.path['learner']}.csv")


def _learners(asked: Asked) -> Answer:
    return Shown("learners.html", asked.console.reader.record("learners", records.learners))


def _table(rows: Iterable[Sequence[Any]], name: str) -> Text:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return Text(text.getvalue(), "text/csv", name)


def _why(asked: Asked) -> Answer:
    name, task, round_ = asked.path["name"], asked.path["task"], asked.round
    found = asked.console.reader.record(
        ("why", name, task, round_), lambda t: records.why(t, name, task, round_).record()
    )
    return Shown("why.html", found)


def _audit(asked: Asked) -> Answer:
    return Shown("audit.html", asked.console.verification.record())


def _begin_audit(asked: Asked) -> Answer:
    asked.console.verification.begin()
    return Moved("/audit/")


def _operator(asked: Asked) -> Answer:
    reader = asked.console.reader
    front = reader.record("front", lambda t: records.market(t, reader.config.name))
    return Shown("operator.html", {**front, "service": asked.console.service.record()})


def _operator_task(asked: Asked) -> Answer:
    name = asked.path["task"]
    record = asked.console.reader.record(("operator task", name), lambda t: records.operator_task(t, name))
    if record["state"] in (State.TRAINING, State.SCORED):
        record = records.with_progress(record, asked.console.progress.of(name, record["round"]))
    return Shown("operator_task.html", record, {"notice": _notice(asked)})


def _people(asked: Asked) -> Answer:
    with closing(_acting(asked)) as operator:
        people = [vars(person) for person in operator.enrolled()]
    return Shown("people.html", {"participants": people}, {"notice": _notice(asked)})


def _ask_cancel(asked: Asked) -> Answer:
    name = asked.path["task"]
    record = asked.console.reader.record(("operator task", name), lambda t: records.operator_task(t, name))
    return Shown("cancel.html", record)


def _cancel(asked: Asked) -> Answer:
    name = asked.path["task"]
    with closing(_acting(asked)) as operator:
        operator.cancel(name, asked.form.get("reason", "").strip()[:500] or "cancelled by the operator")
        return _done(asked, operator, f"/operator/tasks/{name}/")


def _ask_revoke(asked: Asked) -> Answer:
    name = asked.path["name"]
    record = asked.console.reader.record(("participant", name), lambda t: records.participant(t, name))
    return Shown("revoke.html", record)


def _revoke(asked: Asked) -> Answer:
    with closing(_acting(asked)) as operator:
        reason = asked.form.get("reason", "").strip()[:500] or "revoked by the operator"
        operator.revoke(asked.path["name"], reason)
        return _done(asked, operator, "/operator/participants/")


def _invite(asked: Asked) -> Answer:
    with closing(_acting(asked)) as operator:
        name, organisation = (asked.form.get(key, "").strip() for key in ("name", "organisation"))
        made, entrance = operator.invite(name, organisation), operator.entrance()
        authority = (operator.folder.path / "authority.pem").read_text()
        notice = _NOTICES[_named(operator)]
    return Shown(
        "invited.html",
        {},
        {"made": made, "entrance": entrance, "authority": authority, "notice": notice},
    )


def _payouts(asked: Asked) -> Answer:
    with closing(_acting(asked)) as operator:
        due, runs = operator.due(), operator.payout_runs()
    record = {
        "price": None if due.price is None else due.price.record(),
        "due": None if due.price is None else due.price.text(due.units),
        "payees": len(due.free),
        "left_out": list(due.left_out),
        "pending": next((run.record() for run in runs if run.row.outcome is None), None),
        "payouts": [run.record() for run in reversed(runs)],
    }
    return Shown("payouts.html", record, {"notice": _notice(asked)})


def _begin_payout(asked: Asked) -> Answer:
    with closing(_acting(asked)) as operator:
        run, _ = operator.pay_out()
        return _done(asked, operator, f"/operator/payouts/{run.row.number}/")


def _payout(asked: Asked) -> Answer:
    number = asked.whole("The payout", asked.path["payout"])
    with closing(_acting(asked)) as operator:
        found = [run for run in operator.payout_runs() if run.row.number == number]
        if not found:
            raise NotThere(f"There is no payout {number}.")
        record = found[0].record()
        files = None if record["standing"] == "withdrawn" else operator.payout_files(number)
    shown = {} if files is None else {"message": files.message is not None, "why": files.why}
    return Shown("payout.html", record, {"notice": _notice(asked), **shown})


def _end_payout(asked: Asked) -> Answer:
    """Confirms or withdraws a payout, or records a payment that came back."""
    number, act = asked.whole("The payout", asked.path["payout"]), asked.form.get("act", "")
    reason = asked.form.get("reason", "").strip()[:500]
    with closing(_acting(asked)) as operator:
        if act == "confirm":
            operator.confirm_payout(number)
        elif act == "withdraw":
            operator.withdraw_payout(number, reason)
        elif act == "return":
            operator.return_payment(number, asked.form.get("participant", ""), reason)
        else:
            raise Mistake(f"the act is {act!r:.60}; expected confirm, withdraw or return.")
        return _done(asked, operator, f"/operator/payouts/{number}/")


def _payout_table(asked: Asked) -> Answer:
    number = asked.whole("The payout", asked.path["payout"])
    with closing(_acting(asked)) as operator:
        return Text(operator.payout_files(number).csv.decode(), "text/csv", f"payout-{number}.csv")


def _payout_message(asked: Asked) -> Answer:
    number = asked.whole("The payout", asked.path["payout"])
    with closing(_acting(asked)) as operator:
        files = operator.payout_files(number)
    if files.message is None:
        raise NotThere(f"Payout {number} has a CSV file alone: {files.why}.")
    return Text(files.message.decode(), "application/xml", f"payout-{number}.xml")


def _ask_open(asked: Asked) -> Answer:
    return Shown("open.html", asked.console.opening.record())


def _open(asked: Asked) -> Answer:
    """Proves a task file, or opens the task that was proved."""
    if "digest" not in asked.form:
        noise = asked.form.get("accept_noise") == "yes"
        asked.console.opening.begin(asked.form.get("text", ""), accept_noise=noise)
        return Moved("/operator/open/")
    task = asked.console.opening.record()["offer"]
    operator = asked.console.opening.open(asked.form["digest"])
    return _done(asked, operator, f"/operator/tasks/{task['task']}/")


def _acting(asked: Asked) -> Operator:
    """The operator's commands: they change the database and tell the service through its control socket."""
    return Operator(asked.console.reader.folder, asked.console.reader.clock)


def _done(asked: Asked, operator: Operator, to: str) -> Moved:
    asked.console.look()
    return Moved(f"{to}?notice={_named(operator)}")


def _named(operator: Operator) -> str:
    return (operator.notice or Notice.NOT_SERVED).name.lower()


#: What a change has come to, by `coordinator.operator.Notice`.
_NOTICES = {
    "confirmed": "Done. The coordinator that runs has taken notice.",
    "not_served": "Recorded. No coordinator runs; the next one begins with it.",
    "unconfirmed": "Recorded, and not confirmed: the coordinator that serves this database has not answered. It takes "
    "it up when it goes on; do not repeat it.",
}


def _notice(asked: Asked) -> str:
    return _NOTICES.get(asked.query.get("notice", ""), "")


def _ask_sign_in(asked: Asked) -> Answer:
    shown = asked.console.certificates.name(asked.certificate)
    return Shown(
        "sign_in.html",
        {},
        {"token": asked.query.get("token", ""), "shown": shown, "oidc": asked.console.oidc},
    )


def _oidc(asked: Asked) -> Oidc:
    """Raises NotThere where coordinator.toml names no provider."""
    if asked.console.oidc is None:
        raise NotThere("Nobody signs in through a provider here; /sign-in/ says how else.")
    return asked.console.oidc


def _begin_oidc(asked: Asked) -> Answer:
    url, kept = _oidc(asked).begin()
    return Moved(url, kept=kept)


def _end_oidc(asked: Asked) -> Answer:
    """A page and no redirection: a browser that another site has led here has no session until somebody clicks."""
    visitor = _oidc(asked).end(dict(asked.query), asked.kept)
    return Shown("signed_in.html", {}, {"to": home(visitor)}, visitor)


def _sign_in(asked: Asked) -> Answer:
    if asked.form.get("by") == "certificate":
        visitor = asked.console.certificates.visitor(asked.certificate)
    else:
        visitor = asked.console.sessions.redeem(asked.form.get("token", "").strip(), asked.host)
    return Moved(home(visitor), visitor)


def _sign_out(asked: Asked) -> Answer:
    return Moved("/", Visitor())


def home(visitor: Visitor) -> str:
    """Where a visitor begins."""
    return {
        Role.OPERATOR: "/operator/",
        Role.AUDITOR: "/audit/",
        Role.PARTICIPANT: f"/participants/{visitor.name}/",
        Role.LEARNER: f"/learners/{visitor.name}/",
        Role.PUBLIC: "/",
    }[visitor.role]


PAGES = (
    Page("/", EVERYBODY, _front),
    Page("/tasks/{task}/", EVERYBODY, _task),
    Page("/tasks/{task}/leaderboard/", EVERYBODY, _leaderboard),
    Page("/results/", EVERYBODY, _results),
    Page("/results/{file}", EVERYBODY, _result),
    Page("/ledger/", EVERYBODY, _ledger),
    Page(
        "/ledger/receipt/",
        EVERYBODY,
        _ask_receipt,
        _check_receipt,
        harmless=True,
        form_bytes=_RECEIPT_FORM_BYTES,
    ),
    Page("/ledger/{index}/", EVERYBODY, _entry),
    Page("/ledger/{index}/receipt", EVERYBODY, _receipt),
    Page("/participants/{name}/", OWN, _participant),
    Page("/participants/{name}/statement.csv", OWN, _statement),
    Page("/participants/{name}/statement/", OWN, _printed),
    Page("/participants/{name}/{task}/{round}/", OWN, _why),
    Page("/learners/{learner}/", FUNDER, _learner),
    Page("/learners/{learner}/statement.csv", FUNDER, _learner_statement),
    Page("/learners/{learner}/statement/", FUNDER, _learner_printed),
    Page("/audit/", AUDIT, _audit, _begin_audit),
    Page("/operator/", OPERATOR, _operator),
    Page("/operator/alarms/", OPERATOR, _alarms),
    Page("/operator/participants/", OPERATOR, _people),
    Page("/operator/participants/{name}/revoke/", OPERATOR, _ask_revoke, _revoke),
    Page("/operator/invite/", OPERATOR, None, _invite),
    Page("/operator/open/", OPERATOR, _ask_open, _open),
    Page("/operator/learners/", OPERATOR, _learners),
    Page("/operator/payouts/", OPERATOR, _payouts, _begin_payout),
    Page("/operator/payouts/{payout}/", OPERATOR, _payout, _end_payout),
    Page("/operator/payouts/{payout}/payout.csv", OPERATOR, _payout_table),
    Page("/operator/payouts/{payout}/payout.xml", OPERATOR, _payout_message),
    Page("/operator/tasks/{task}/", OPERATOR, _operator_task),
    Page("/operator/tasks/{task}/cancel/", OPERATOR, _ask_cancel, _cancel),
    Page("/sign-in/", EVERYBODY, _ask_sign_in, _sign_in, open=True, harmless=True),
    Page("/sign-in/oidc", EVERYBODY, _begin_oidc, open=True),
    Page(RETURN_PATH, EVERYBODY, _end_oidc, open=True),
    Page("/sign-out/", SIGNED_IN, None, _sign_out),
)


def admitted(page: Page, visitor: Visitor, path: Mapping[str, str], *, public_ledger: bool) -> bool:
    """Whether a visitor may see a page."""
    if visitor.role is Role.PUBLIC and not (public_ledger or page.open):
        return False
    if visitor.role not in page.roles:
        return False
    own = {Role.PARTICIPANT: "name", Role.LEARNER: "learner"}.get(visitor.role)
    return own is None or path.get(own, visitor.name) == visitor.name


def json_text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)
