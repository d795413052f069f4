"""Nobody sees what is not theirs: every address, with every role."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Mount, Route

from coordinator.clock import ManualClock
from fedpeer.console.routes import PAGES
from fedpeer.console.sessions import Role
from fedpeer.testing import LocalMarket
from tests.fedpeer.console.visiting import Visit, Visited, visited

#: Who may ask for what, by address and method; written down once more, so that a change of the table is a decision.
#: "p1" is the participant that the address names, "p2" another one; "trust" is the learner that it names, "p1 fund" one
#: that is called as the participant.
ALL = {"public", "p1", "p2", "trust", "p1 fund", "auditor", "operator"}
ALLOWED = {
    ("GET", "/"): ALL,
    ("GET", "/index.json"): ALL,
    ("GET", "/tasks/{task}/"): ALL,
    ("GET", "/tasks/{task}.json"): ALL,
    ("GET", "/tasks/{task}/leaderboard/"): ALL,
    ("GET", "/tasks/{task}/leaderboard.json"): ALL,
    ("GET", "/results/"): ALL,
    ("GET", "/results.json"): ALL,
    ("GET", "/results/{file}"): ALL,
    ("GET", "/ledger/"): ALL,
    ("GET", "/ledger.json"): ALL,
    ("GET", "/ledger/receipt/"): ALL,
    ("GET", "/ledger/receipt.json"): ALL,
    ("POST", "/ledger/receipt/"): ALL,
    ("GET", "/ledger/{index}/"): ALL,
    ("GET", "/ledger/{index}.json"): ALL,
    ("GET", "/ledger/{index}/receipt"): ALL,
    ("GET", "/participants/{name}/"): {"p1", "operator"},
    ("GET", "/participants/{name}.json"): {"p1", "operator"},
    ("GET", "/participants/{name}/statement.csv"): {"p1", "operator"},
    ("GET", "/participants/{name}/statement/"): {"p1", "operator"},
    ("GET", "/participants/{name}/statement.json"): {"p1", "operator"},
    ("GET", "/participants/{name}/{task}/{round}/"): {"p1", "operator"},
    ("GET", "/participants/{name}/{task}/{round}.json"): {"p1", "operator"},
    ("GET", "/learners/{learner}/"): {"trust", "operator"},
    ("GET", "/learners/{learner}.json"): {"trust", "operator"},
    ("GET", "/learners/{learner}/statement.csv"): {"trust", "operator"},
    ("GET", "/learners/{learner}/statement/"): {"trust", "operator"},
    ("GET", "/learners/{learner}/statement.json"): {"trust", "operator"},
    ("GET", "/audit/"): {"auditor", "operator"},
    ("GET", "/audit.json"): {"auditor", "operator"},
    ("POST", "/audit/"): {"auditor", "operator"},
    ("GET", "/operator/"): {"operator"},
    ("GET", "/operator.json"): {"operator"},
    ("GET", "/operator/alarms/"): {"operator"},
    ("GET", "/operator/alarms.json"): {"operator"},
    ("GET", "/operator/participants/"): {"operator"},
    ("GET", "/operator/participants.json"): {"operator"},
    ("GET", "/operator/participants/{name}/revoke/"): {"operator"},
    ("GET", "/operator/participants/{name}/revoke.json"): {"operator"},
    ("POST", "/operator/participants/{name}/revoke/"): {"operator"},
    ("POST", "/operator/invite/"): {"operator"},
    ("GET", "/operator/open/"): {"operator"},
    ("GET", "/operator/open.json"): {"operator"},
    ("POST", "/operator/open/"): {"operator"},
    ("GET", "/operator/tasks/{task}/"): {"operator"},
    ("GET", "/operator/tasks/{task}.json"): {"operator"},
    ("GET", "/operator/tasks/{task}/cancel/"): {"operator"},
    ("GET", "/operator/tasks/{task}/cancel.json"): {"operator"},
    ("POST", "/operator/tasks/{task}/cancel/"): {"operator"},
    ("GET", "/operator/learners/"): {"operator"},
    ("GET", "/operator/learners.json"): {"operator"},
    ("GET", "/operator/payouts/"): {"operator"},
    ("GET", "/operator/payouts.json"): {"operator"},
    ("POST", "/operator/payouts/"): {"operator"},
    ("GET", "/operator/payouts/{payout}/"): {"operator"},
    ("GET", "/operator/payouts/{payout}.json"): {"operator"},
    ("POST", "/operator/payouts/{payout}/"): {"operator"},
    ("GET", "/operator/payouts/{payout}/payout.csv"): {"operator"},
    ("GET", "/operator/payouts/{payout}/payout.xml"): {"operator"},
    ("GET", "/sign-in/"): ALL,
    ("GET", "/sign-in.json"): ALL,
    ("POST", "/sign-in/"): ALL,
    ("GET", "/sign-in/oidc"): ALL,
    ("GET", "/sign-in/oidc/return"): ALL,
    ("POST", "/sign-out/"): ALL - {"public"},
    ("GET", "/events"): ALL,
}

PLACES = {
    "task": "task",
    "index": "3",
    "payout": "1",
    "name": "p1",
    "learner": "trust",
    "round": "1",
    "file": "arena.json",
}


@pytest.fixture(scope="module")
def visitors(console: Visited, market: LocalMarket) -> dict[str, Visit]:
    return {
        "public": console.public(),
        "p1": console.participant(market.folder / "p1"),
        "p2": console.participant(market.folder / "p2"),
        "trust": console.signed_in(Role.LEARNER, "trust"),
        "p1 fund": console.signed_in(Role.LEARNER, "p1"),
        "auditor": console.signed_in(Role.AUDITOR),
        "operator": console.signed_in(Role.OPERATOR),
    }


def test_every_address_is_written_down_here(console: Visited) -> None:
    found = set()
    for route in console.server.console.routes():
        if isinstance(route, Mount):
            assert route.path == "/static"  # a style sheet, a script and a picture, the same for everybody
            continue
        assert isinstance(route, Route)
        found |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
    assert found == set(ALLOWED)
    assert len(PAGES) == len({page.path for page in PAGES})


@pytest.mark.parametrize(("method", "path"), ALLOWED, ids=lambda part: str(part))
def test_an_address_answers_whom_it_is_for_and_nobody_else(
    visitors: dict[str, Visit], method: str, path: str
) -> None:
    for who, visit in visitors.items():
        response = visit.open(method, path.format(**PLACES), "" if method == "POST" else None)
        status = response.status
        if path == "/events":
            assert status == 200
            continue
        text = response.read().decode()
        if who not in ALLOWED[method, path]:
            assert status == (401 if who == "public" else 403)
            assert "credits" not in text.partition("<main")[2].partition("</main>")[0]
            if path.endswith(".json"):
                assert json.loads(text).keys() == {"error"}
        elif "oidc" in path:  # this market names no provider
            assert status == 404
        elif method == "GET" or path == "/ledger/receipt/":  # whose form changes nothing
            assert status == 200, (who, text)
        else:  # a form without its token changes nothing
            assert status == 403, (who, text)
            assert "earlier session" in text or "link was used" in text


@pytest.mark.parametrize(
    ("path", "who"),
    [
        (path, who)
        for method, path in ALLOWED
        for who in ("name", "learner")
        if method == "GET" and f"{{{who}}}" in path
    ],
)
def test_nobody_is_told_who_else_there_is(visitors: dict[str, Visit], path: str, who: str) -> None:
    there = PLACES[who]
    for visit in (visitors["public"], visitors["p2"]):
        answers = [visit.get(path.format(**{**PLACES, who: name})) for name in (there, "nobody")]
        assert answers[0].status == answers[1].status >= 401
        assert answers[0].text.replace(there, "nobody") == answers[1].text


@pytest.fixture(scope="module")
def closed(market: LocalMarket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    """A console of the same market whose operator keeps the ledger from the public."""
    config = market.coordinator.folder.path / "coordinator.toml"
    before = config.read_text()
    config.write_text(before.replace("[server]\n", "[server]\npublic_ledger = false\n"))
    try:
        with visited(market.coordinator.folder, ManualClock(market.coordinator.clock.now())) as served:
            yield served
    finally:
        config.write_text(before)


def test_a_market_without_a_public_ledger_shows_the_public_how_to_sign_in_alone(
    closed: Visited, market: LocalMarket
) -> None:
    public, member = closed.public(), closed.participant(market.folder / "p1")
    for method, path in ALLOWED:
        if method == "GET":
            status = public.open("GET", path.format(**PLACES)).status
            expected = 404 if "oidc" in path else 200 if path.startswith("/sign-in") else 401
            assert status == expected, path
    for path in ("/", "/ledger/", "/tasks/task/", "/participants/p1/"):
        assert member.get(path).status == 200


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/tasks/none/", 404, "There is no task none."),
        ("/tasks/none.json", 404, "There is no task none."),
        ("/ledger/999999/", 404, "there is no entry 999999"),
        ("/ledger/-1/", 400, "expected a whole number"),
        ("/ledger/?end=x", 400, "expected a whole number"),
        ("/participants/nobody/", 404, "There is no participant nobody."),
        ("/learners/nobody/", 404, "There is no learner nobody who has paid in."),
        ("/participants/p1/task/9/", 404, "Round 9 of task task has settled nothing for p1."),
        ("/participants/p1/task/one/", 400, "expected a whole number"),
        ("/nowhere/", 404, "Not Found"),
        ("/operator/invite/", 405, "Method Not Allowed"),
    ],
)
def test_what_is_not_there_is_said_in_a_sentence(
    visitors: dict[str, Visit], path: str, status: int, said: str
) -> None:
    answer = visitors["operator"].get(path)
    assert answer.status == status
    assert said in answer.text
    assert "Traceback" not in answer.text


def test_every_answer_forbids_what_pages_do_not_need(visitors: dict[str, Visit]) -> None:
    for path in ("/", "/index.json", "/nowhere", "/static/console.js", "/participants/p1/statement.csv"):
        headers = visitors["operator"].get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_pages_ask_no_other_host_and_carry_no_script_or_style_of_their_own(
    visitors: dict[str, Visit],
) -> None:
    for (method, path), who in ALLOWED.items():
        if method == "POST" or not path.endswith("/") or "operator" not in who:
            continue
        text = visitors["operator"].get(path.format(**PLACES)).text
        assert "http://" not in text
        assert "https://" not in text
        assert " style=" not in text
        assert " onclick=" not in text
        assert text.count("<script") == text.count('<script src="/static/console.js" defer>') == 1


def test_another_name_does_not_lead_here(console: Visited) -> None:
    answer = console.public().get("/", Host="attacker.example")
    assert answer.status == 400
    assert answer.text == "This console is not called by that name."


def test_first_pages_are_small(visitors: dict[str, Visit]) -> None:
    static = Path("fedpeer/console/static")
    extra = sum(file.stat().st_size for file in static.iterdir())
    for path in ("/", "/operator/", "/operator/tasks/task/", "/participants/p1/", "/learners/trust/"):
        assert len(visitors["operator"].get(path).text) + extra < 100_000
    assert len((static / "console.js").read_text().splitlines()) < 150
