"""Pages say what the ledger says: the same integers, as text, whoever wrote it."""

import asyncio
import csv
import html
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.clock import SystemClock
from fedpeer.console.routes import PAGES
from fedpeer.console.sessions import Role
from fedpeer.console.words import KINDS
from fedpeer.testing import LocalMarket
from fedpeer.testing.coordinator import LocalCoordinator
from mechanism.ledger.log_keys import LogKeys
from mechanism.ledger.note import VerificationKey
from mechanism.ledger.tlog_proof import TlogProof
from tests.backends import DURABLE, scratch_url
from tests.fedpeer.console.visiting import Visited, eventually, visited
from tests.integration.market import close, in_training, make_folder, open_task, running
from tests.integration.market import task_config as small_task
from tests.integration.serving import Shift, task_config


def micros(text: str) -> list[int]:
    """The exact amounts of a page, in its order."""
    return [int(value) for value in re.findall(r'<data class="money" value="(-?\d+)"', text)]


def test_a_participants_page_has_the_integers_of_the_ledger(console: Visited, market: LocalMarket) -> None:
    for name in market.participants:
        visit = console.participant(market.folder / name)
        record = json.loads(visit.get(f"/participants/{name}.json").text)
        logged = [body for body in market.entries("payment") if body["participant_id"] == name]
        assert [p["paid_micro"] for p in reversed(record["payments"])] == [b["paid_micro"] for b in logged]
        balances = market.verify().balances
        held = balances[f"payable:{name}"]
        assert (record["payable_micro"], record["pending_micro"]) == (held.free, held.debits_pending)
        assert record["paid_micro"] == market.paid_micro[name]
        page = visit.get(f"/participants/{name}/").main
        assert {record["payable_micro"], *(b["paid_micro"] for b in logged)} <= set(micros(page))
        rows = list(csv.DictReader(io.StringIO(visit.get(f"/participants/{name}/statement.csv").text)))
        assert [int(row["paid_micro"]) for row in rows if row["task"]] == [b["paid_micro"] for b in logged]


def test_a_learners_page_has_the_integers_of_the_ledger(console: Visited, market: LocalMarket) -> None:
    visit = console.signed_in(Role.LEARNER, "trust")
    record = json.loads(visit.get("/learners/trust.json").text)
    balances = market.verify().balances
    held, escrow = balances["learner:trust"], balances["escrow:task"]
    budget = record["tasks"][0]["budget_micro"]
    assert (record["deposited_micro"], record["withdrawn_micro"]) == (budget, 0)
    assert (record["free_micro"], record["reserved_micro"]) == (held.free, held.debits_pending)
    assert record["spent_micro"] == escrow.credits_posted > 0
    assert record["free_micro"] == budget - record["spent_micro"] == record["tasks"][0]["returned_micro"]
    for path in ("/learners/trust/", "/learners/trust/statement/"):
        page = visit.get(path).main
        assert {budget, record["spent_micro"], record["free_micro"]} <= set(micros(page)), path
    rows = list(csv.DictReader(io.StringIO(visit.get("/learners/trust/statement.csv").text)))
    assert [(row["kind"], row["reference"], row["micro"]) for row in rows[:1]] == [
        ("deposit", "for-task", str(budget))
    ]
    assert [(row["task"], row["spent_micro"]) for row in rows[1:]] == [("task", str(record["spent_micro"]))]
    assert json.loads(console.signed_in(Role.OPERATOR).get("/operator/learners.json").text) == {
        "learners": [record]
    }


def test_every_payment_is_explained_and_agrees_with_the_ledger(console: Visited, market: LocalMarket) -> None:
    visit = console.signed_in(Role.OPERATOR)
    for body in market.entries("payment"):
        path = f"/participants/{body['participant_id']}/task/{body['round']}"
        record = json.loads(visit.get(f"{path}.json").text)
        assert record["problems"] == []
        for name in ("paid_micro", "gross_micro", "penalty_micro", "withheld_micro", "stake_lost_micro"):
            assert record[name] == body[name]
        left = [step["left_micro"] for step in record["waterfall"]]
        assert left == sorted(left, reverse=True) or record["remainder_micro"]
        assert left[-1] == body["paid_micro"]
        page = visit.get(f"{path}/").main
        assert html.escape(record["formula"]) in page
        assert body["paid_micro"] in micros(page)
        assert "the same amount" in page


def test_an_amount_that_was_changed_beside_the_ledger_is_told(tmp_path: Path) -> None:
    import sqlite3

    with LocalMarket(participants=3, rounds=1, folder=tmp_path) as market:
        market.run()
        folder = market.coordinator.folder
        market.coordinator.stop()
        with sqlite3.connect(folder.path / "coordinator.db") as database:
            text = database.execute("SELECT record FROM settlements WHERE participant_id = 'p1'").fetchone()[
                0
            ]
            record = json.loads(text)
            record["paid_micro"] += 1
            database.execute(
                "UPDATE settlements SET record = ? WHERE participant_id = 'p1'", (json.dumps(record),)
            )
        database.close()
        with visited(folder, market.coordinator.clock) as console:
            page = console.signed_in(Role.OPERATOR).get("/participants/p1/task/1/").main
    assert (
        f"says that {record['paid_micro']} micro-credits were paid, the ledger {record['paid_micro'] - 1}"
        in page
    )


def test_the_operators_page_says_what_became_of_the_budget(console: Visited, market: LocalMarket) -> None:
    record = json.loads(console.signed_in(Role.OPERATOR).get("/operator/tasks/task.json").text)
    report = market.coordinator.task("task")
    assert record["paid_micro"] == sum(report.paid_micro.values())
    assert record["escrow_micro"] == report.escrow_micro == 0
    assert record["budget_micro"] == report.row.terms.budget_micro
    assert {p["id"]: p["paid_micro"] for p in record["people"]} == market.paid_micro
    assert [r["round"] for r in record["history"]] == [1, 2]


def test_every_entry_has_its_page_and_a_receipt_that_holds(console: Visited, market: LocalMarket) -> None:
    visit, entries = console.public(), market.entries()
    head = json.loads(visit.get("/ledger.json").text)
    assert head["entries"] == len(entries)
    keys = LogKeys(VerificationKey.parse(head["key"]))
    seen, end = [], len(entries)
    while end:  # page by page
        page = json.loads(visit.get(f"/ledger.json?end={end}").text)
        seen += [entry["index"] for entry in page["shown"]]
        end = page["first"]
    assert seen == list(reversed(range(len(entries))))
    for index in (0, len(entries) - 1):
        assert json.loads(visit.get(f"/ledger/{index}.json").text)["entry"] == entries[index]
        proof = TlogProof.parse(visit.get(f"/ledger/{index}/receipt").text)
        assert keys.verify(proof).size == head["signed"]
        assert json.loads(proof.entry or b"") == entries[index]


def test_a_receipt_is_held_against_the_ledger(console: Visited, market: LocalMarket, tmp_path: Path) -> None:
    visit = console.public()
    proof = visit.get("/ledger/5/receipt").text
    page = visit.post("/ledger/receipt/", receipt=proof.replace("\n", "\r\n")).main  # as browsers send it
    assert "It proves entry 5 in the log test of" in page
    assert 'href="/ledger/5/"' in page
    with LocalCoordinator(tmp_path / "another") as another:
        another.enrol("alice", tmp_path / "alice")
        another.enrol("bob", tmp_path / "bob")
        with visited(another.folder, another.clock) as other:
            foreign = other.public().get("/ledger/1/receipt").text
    altered = proof.replace("index 5", "index 6")
    assert altered != proof
    for wrong in (foreign, altered, proof[:-10], "", HOSTILE):
        page = visit.post("/ledger/receipt/", receipt=wrong).main
        assert "does not hold" in page
        assert "It proves" not in page
        assert "<script>" not in page


def test_the_auditors_page_verifies_by_the_verifier(console: Visited, market: LocalMarket) -> None:
    visit = console.signed_in(Role.AUDITOR)
    assert visit.post("/audit/", of="/audit/").status == 303
    eventually(lambda: json.loads(visit.get("/audit.json").text)["report"])
    report = json.loads(visit.get("/audit.json").text)["report"]
    assert report == {**market.verify().record(), "source": report["source"]}
    page = visit.get("/audit/").main
    assert "Everything holds." in page
    assert report["root"] in page


def test_every_kind_of_entry_has_words() -> None:
    with Path("docs/ledger-example.jsonl").open() as lines:
        found = {entry["kind"] for line in lines if "kind" in (entry := json.loads(line))}
    assert len(found) > 20
    assert found <= set(KINDS)


def test_terms_are_told_in_words(console: Visited) -> None:
    words = json.loads(console.public().get("/tasks/task.json").text)["words"]
    assert words[0] == "2 rounds, each for at most 10 min; claims are taken for 10 min."
    assert any(
        "credits, on the degree that is claimed; claims are checked by nobody" in line for line in words
    )
    assert any("held as a stake" in line for line in words)


def test_hundreds_who_ask_for_one_page_have_it_made_once(
    console: Visited, monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from fedpeer.console import records

    made: list[str] = []
    make = records.task
    monkeypatch.setattr(records, "task", lambda t, name: made.append(name) or make(t, name))  # type: ignore[func-returns-value]
    console.server.console.reader.record("another", lambda t: t.ledger.size())
    console.server.console.reader._kept.clear()
    with ThreadPoolExecutor(20) as threads:
        answers = set(threads.map(lambda _: console.public().get("/tasks/task/").text, range(200)))
    assert len(answers) == 1
    assert made == ["task"]


@pytest.fixture(params=DURABLE)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with scratch_url(request.param, tmp_path) as url:
        yield url


def test_pages_are_the_same_on_every_database(database: str, tmp_path: Path) -> None:
    with LocalCoordinator(tmp_path / "market", database=database) as coordinator:
        coordinator.open(task_config(tmp_path, rule={"name": "paper"}, schedule={"rounds": 1}))
        people = [coordinator.participant(f"p{n}", tmp_path) for n in range(3)]
        threads = [
            threading.Thread(target=person.run, args=(Shift([9 + n, 9, 9, 9]),), kwargs={"task_id": "task"})
            for n, person in enumerate(people)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        coordinator.until("task", "CLOSED")
        for person in people:
            person.close()
        with visited(coordinator.folder, coordinator.clock) as console:
            visit = console.signed_in(Role.OPERATOR)
            for path in (
                "/",
                "/operator/",
                "/operator/alarms/",
                "/operator/tasks/task/",
                "/participants/p1/",
                "/participants/p1/statement/",
                "/participants/p1/task/1/",
                "/ledger/",
            ):
                assert visit.get(path).status == 200, path
            for path in ("/tasks/a%00b/", "/participants/%00/", "/ledger/?end=%00"):
                assert visit.get(path).status == 404, path
            record = json.loads(visit.get("/participants/p1.json").text)
            assert record["payable_micro"] == coordinator.verify().balances["payable:p1"].holds > 0
            assert json.loads(visit.get("/participants/p1/task/1.json").text)["problems"] == []


HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)> & \u202e \"' {{ 7*7 }}"


async def test_words_of_others_are_text_everywhere_and_watchers_are_told_of_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "market")
    open_task(folder, small_task(tmp_path))
    async with running(folder) as coordinator:
        members = await in_training(coordinator, ("p1", "p2", "p3"))
        with visited(folder, coordinator._clock) as console:
            visit = await asyncio.to_thread(console.signed_in, Role.OPERATOR)
            stream = await asyncio.to_thread(console.public().open, "GET", "/events")
            assert await asyncio.to_thread(stream.readline) == b"retry: 3000\n"
            before = json.loads((await asyncio.to_thread(visit.get, "/ledger.json")).text)["entries"]
            await members[0].fail(1, HOSTILE)

            def told() -> int:
                while not (line := stream.readline()).startswith(b"data: "):
                    assert line, "the stream has ended"
                return int(json.loads(line[6:])["entries"])

            async with asyncio.timeout(60):
                while await asyncio.to_thread(told) <= before:
                    pass
            page = (await asyncio.to_thread(visit.get, "/operator/tasks/task/")).main
            assert html.escape(HOSTILE) in page.replace("&#39;", "&#x27;").replace("&#34;", "&quot;")
            assert "<script>" not in page
            assert "<img" not in page

            asked = await asyncio.to_thread(visit.get, "/operator/tasks/task/cancel/")
            record = json.loads((await asyncio.to_thread(visit.get, "/operator/tasks/task.json")).text)
            assert micros(asked.main)[:2] == [record["escrow_micro"], record["paid_micro"]]
            cancelled = await asyncio.to_thread(
                lambda: visit.post(
                    "/operator/tasks/task/cancel/", of="/operator/tasks/task/cancel/", reason=HOSTILE
                )
            )
            assert cancelled.headers["location"] == "/operator/tasks/task/?notice=confirmed"
            last = json.loads((await asyncio.to_thread(visit.get, "/ledger.json")).text)["entries"]
            places = {"task": "task", "name": "p1", "learner": "x", "round": "1", "file": "x", "index": ""}
            shown = {page.path for page in PAGES if page.json_path is not None}
            paths = [
                path.format(**places) for path in shown if not {"{index}", "{payout}"} & {*path.split("/")}
            ]
            for path in [*paths, *(f"/ledger/{index}/" for index in range(last))]:
                page = (await asyncio.to_thread(visit.get, path)).main
                assert "<script>" not in page, path
                assert "<img" not in page, path
            after = json.loads((await asyncio.to_thread(visit.get, "/tasks/task.json")).text)
            assert (after["state"], after["reason"]) == ("CANCELLED", HOSTILE)
            again = await asyncio.to_thread(
                lambda: visit.post("/operator/tasks/task/cancel/", of="/operator/participants/", reason="")
            )
            assert again.status == 409
            assert "CANCELLED already" in again.text
            stream.close()
        await close(members)


def test_an_operator_invites_and_revokes_in_the_browser(tmp_path: Path) -> None:
    from participant import Participant

    with (
        LocalCoordinator(tmp_path / "market") as coordinator,
        visited(coordinator.folder, coordinator.clock) as console,
    ):
        visit = console.signed_in(Role.OPERATOR)
        page = visit.post("/operator/invite/", of="/operator/participants/", name="alice").main
        token = re.search(r'id="token">([^<]+)<', page)
        assert token is not None
        Participant.enroll(
            tmp_path / "alice",
            participant_id="alice",
            public=coordinator.public,
            token=html.unescape(token[1]),
            authority=coordinator.authority,
        )
        assert "enrolled" in visit.get("/operator/participants/").main
        own = console.participant(tmp_path / "alice")
        asked = visit.get("/operator/participants/alice/revoke/").main
        assert "Its certificates end at once" in asked
        answer = visit.post(
            "/operator/participants/alice/revoke/", of="/operator/participants/alice/revoke/", reason="left"
        )
        assert answer.headers["location"] == "/operator/participants/?notice=confirmed"
        assert (
            "Done. The coordinator that runs has taken notice." in visit.get(answer.headers["location"]).main
        )
        assert own.get("/participants/alice/").status == 401
        assert [body["reason"] for body in coordinator.entries("revocation")] == ["left"]
        bad = visit.post("/operator/invite/", of="/operator/participants/", name="Not a name")
        assert bad.status == 400
        assert "lower-case letters" in bad.text


def test_a_leaderboard_has_the_integers_of_the_ledger_and_no_names(
    console: Visited, market: LocalMarket
) -> None:
    record = json.loads(console.public().get("/tasks/task/leaderboard.json").text)
    assert [line["paid_micro"] for line in record["lines"]] == sorted(
        market.paid_micro.values(), reverse=True
    )
    page = console.public().get("/tasks/task/leaderboard/").main
    for name in market.participants:
        assert not re.search(rf"\b{name}\b", page + json.dumps(record))
        own = json.loads(console.participant(market.folder / name).get(f"/participants/{name}.json").text)
        [place] = [line for line in record["lines"] if line["pseudonym"] == own["tasks"][0]["pseudonym"]]
        assert place["paid_micro"] == market.paid_micro[name]
        assert place["rounds_paid"] == sum(
            b["paid_micro"] > 0 for b in market.entries("payment") if b["participant_id"] == name
        )
    assert "Leaderboard" in console.public().get("/tasks/task/").main


def test_a_task_that_does_not_allow_it_has_no_leaderboard(tmp_path: Path) -> None:
    with LocalCoordinator(tmp_path) as coordinator:
        coordinator.open(task_config(tmp_path, "quiet"))
        with visited(coordinator.folder, coordinator.clock) as console:
            answer = console.public().get("/tasks/quiet/leaderboard/")
            assert (answer.status, "has no leaderboard" in answer.main) == (404, True)
            assert "Leaderboard" not in console.public().get("/tasks/quiet/").main


def test_a_statement_to_print_has_the_integers_of_the_ledger(console: Visited, market: LocalMarket) -> None:
    page = console.participant(market.folder / "p2").get("/participants/p2/statement/").main
    logged = [body for body in market.entries("payment") if body["participant_id"] == "p2"]
    found = micros(page)
    for body in logged:
        for key in ("paid_micro", "penalty_micro", "withheld_micro", "stake_lost_micro"):
            assert body[key] in found
    assert market.verify().balances["payable:p2"].holds in found


def test_results_are_the_folders_own_files_as_what_they_are(console: Visited) -> None:
    visit = console.public()
    record = json.loads(visit.get("/results.json").text)
    assert record == {"results": [{"name": "arena", "pictures": ["arena.png"], "files": ["arena.json"]}]}
    picture = visit.open("GET", "/results/arena.png")
    assert (picture.headers["content-type"], picture.read()) == ("image/png", b"\x89PNG\r\n\x1a\n")
    assert visit.get("/results/arena.json").headers["content-type"] == "application/json"
    for name in ("page.html", "out.csv", "cells", "..", "%2e%2e%2fcoordinator.toml", "%3Cb%3E.csv"):
        assert visit.get(f"/results/{name}").status == 404, name


def test_accuracy_by_label_stands_beside_the_whole(tmp_path: Path) -> None:
    import sqlite3

    with LocalMarket(participants=3, rounds=1, folder=tmp_path) as market:
        market.run()
        folder, clock = market.coordinator.folder, market.coordinator.clock
        with sqlite3.connect(folder.path / "coordinator.db") as database:
            database.execute(
                "UPDATE rounds SET accuracy = '0.75', accuracy_by_label = '[\"1.000000\", null, \"0.500000\"]'"
            )
        with visited(folder, clock) as console:
            page = console.public().get("/tasks/task/").main
            for words in ("Accuracy by label after round 1", "100.0%", "no sample", "50.0%"):
                assert words in page


def test_alarms_show_what_the_service_says_of_itself(tmp_path: Path) -> None:
    config = (
        'name = "test"\n[server]\nmarket = "127.0.0.1:0"\npublic = "127.0.0.1:0"\nmetrics = "127.0.0.1:0"\n'
    )
    folder = make_folder(tmp_path / "state", config)

    async def play() -> None:
        async with running(folder) as service:
            service.metrics.stalled.labels("<i>task</i>").set(1)
            await asyncio.to_thread(look)

    def look() -> None:
        with visited(folder, SystemClock()) as console:
            visit = console.signed_in(Role.OPERATOR)
            states = {a["name"]: a for a in json.loads(visit.get("/operator/alarms.json").text)["alarms"]}
            assert states["TaskStalled"]["state"] == "raised"
            assert states["CertificateExpiring"]["state"] == "quiet"
            assert states["QuotaExceeded"]["state"] == "history"
            page = visit.get("/operator/alarms/").main
            assert "task &lt;i&gt;task&lt;/i&gt;" in page
            assert "1 raised" in page
            assert "Task stalled" in visit.get("/operator/").main

    asyncio.run(play())
    with visited(folder, SystemClock()) as console:  # nobody serves any more
        page = console.signed_in(Role.OPERATOR).get("/operator/alarms/").main
        assert "cannot be read" in page
