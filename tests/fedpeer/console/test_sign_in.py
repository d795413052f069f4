"""Links sign somebody in once, for as long as they say; sessions end with their time and their key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.clock import ManualClock
from fedpeer.console.sessions import SESSION_SECONDS, Role
from fedpeer.protocol.certificates import new_key
from fedpeer.protocol.console_link import LINK_SECONDS, sign_in_token
from fedpeer.testing import LocalMarket
from participant.identity import IdentityFolder
from tests.fedpeer.console.visiting import Visited, visited


@pytest.fixture
def clock(market: LocalMarket) -> ManualClock:
    return ManualClock(market.coordinator.clock.now())


@pytest.fixture
def served(market: LocalMarket, clock: ManualClock) -> Iterator[Visited]:
    with visited(market.coordinator.folder, clock) as console:
        yield console


@pytest.mark.parametrize(
    ("role", "name", "page"),
    [
        (Role.OPERATOR, "", "/operator/"),
        (Role.AUDITOR, "", "/audit/"),
        (Role.LEARNER, "trust", "/learners/trust/"),
    ],
)
def test_a_link_signs_in_once_after_it_was_looked_at(
    served: Visited, role: Role, name: str, page: str
) -> None:
    token, visit = served.link(role, name), served.public()
    for _ in range(2):  # a preview that fetches the link does not use it
        assert "This link signs you in" in visit.get(f"/sign-in/?token={token}").text
    answer = visit.post("/sign-in/", token=token)
    assert (answer.status, answer.headers["location"]) == (303, page)
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    assert visit.get(page).status == 200
    again = served.public().post("/sign-in/", token=token)
    assert again.status == 403
    assert "this link was used" in again.text


def test_two_who_use_one_link_at_once_do_not_both_get_in(served: Visited) -> None:
    from concurrent.futures import ThreadPoolExecutor

    token = served.link(Role.OPERATOR)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: served.public().post("/sign-in/", token=token).status, range(8)))
    assert sorted(answers) == [303, *[403] * 7]


def test_a_link_expires(served: Visited, clock: ManualClock, market: LocalMarket) -> None:
    credentials = IdentityFolder(market.folder / "p1").credentials()
    tokens = [
        served.link(Role.OPERATOR),
        sign_in_token("p1", credentials.key, served.host, clock.now()),
    ]
    clock._now += LINK_SECONDS + 61
    for token in tokens:
        answer = served.public().post("/sign-in/", token=token)
        assert answer.status == 403
        assert "expired" in answer.text


def test_a_participant_signs_in_by_its_key_once(served: Visited, market: LocalMarket) -> None:
    credentials = IdentityFolder(market.folder / "p1").credentials()
    token = sign_in_token("p1", credentials.key, served.host, served.clock.now())
    visit = served.with_token(token)
    assert visit.get("/participants/p1/").status == 200
    answer = served.public().post("/sign-in/", token=token)
    assert answer.status == 403
    assert "this link was used" in answer.text


def test_only_the_enrolled_key_signs_in_here_and_as_itself(served: Visited, market: LocalMarket) -> None:
    now, own = served.clock.now(), IdentityFolder(market.folder / "p1").credentials().key
    for token, said in (
        (sign_in_token("p1", new_key(), served.host, now), "not signed by the key"),
        (sign_in_token("p2", own, served.host, now), "not signed by the key"),
        (sign_in_token("stranger", own, served.host, now), "no key of that name"),
        (
            sign_in_token("p1", own, "elsewhere.example:7445", now),
            "is for the console at elsewhere.example:7445",
        ),
        (sign_in_token("p1", own, served.host, now + 3600), "expired, or one of the two clocks is wrong"),
        (sign_in_token("p1", own, served.host, now)[:-4], ""),
        ("a.b", "not a link"),
        ("." * 3000, "not a link"),
        ("", "was used, or was never made"),
        ("../key", ""),
    ):
        answer = served.public().post("/sign-in/", token=token)
        assert answer.status == 403, token
        assert said in answer.text


def test_a_session_ends_with_its_time(served: Visited, clock: ManualClock) -> None:
    visit = served.signed_in(Role.OPERATOR)
    clock._now += SESSION_SECONDS - 1
    assert visit.get("/operator/").status == 200
    clock._now += 2
    assert visit.get("/operator/").status == 401


def test_a_session_ends_with_its_participants_key(tmp_path: Path) -> None:
    from fedpeer.testing.coordinator import LocalCoordinator

    with LocalCoordinator(tmp_path / "market") as coordinator:
        state = coordinator.enrol("alice", tmp_path / "alice")
        with visited(coordinator.folder, coordinator.clock) as console:
            visit = console.participant(state)
            assert visit.get("/participants/alice/").status == 200
            coordinator.operator(lambda operator: operator.revoke("alice", "test"))
            assert visit.get("/participants/alice/").status == 401


def test_a_cookie_that_was_changed_or_is_of_another_market_is_nobodys(
    served: Visited, tmp_path: Path
) -> None:
    visit = served.signed_in(Role.AUDITOR)
    name, _, value = visit.cookie.partition("=")
    for changed in (value[:-1], value.swapcase(), "", "x" * 5000):
        visit.cookie = f"{name}={changed}"
        assert visit.get("/audit/").status == 401


def test_signing_out_forgets_the_cookie(served: Visited) -> None:
    visit = served.signed_in(Role.OPERATOR)
    answer = visit.post("/sign-out/", of="/operator/")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert visit.get("/operator/").status == 401


def test_a_form_of_another_site_or_session_changes_nothing(served: Visited) -> None:
    one, other = served.signed_in(Role.OPERATOR), served.signed_in(Role.OPERATOR)
    import html
    import re
    from urllib.parse import urlencode

    found = re.search(r'name="form" value="([^"]*)"', other.get("/operator/participants/").text)
    assert found is not None
    theirs = urlencode({"form": html.unescape(found[1]), "name": "mallory"})
    assert one.ask("POST", "/operator/invite/", theirs).status == 403
    assert other.ask("POST", "/operator/invite/", theirs, Origin="http://attacker.example").status == 403
    assert other.ask("POST", "/operator/invite/", theirs, Origin=served.url).status == 200
    assert other.ask("POST", "/operator/invite/", f"name={'x' * 70_000}").status == 400


def test_the_folder_of_links_is_its_owners_alone(served: Visited) -> None:
    served.link(Role.OPERATOR)
    for path in (served.folder.console, *served.folder.console.rglob("*")):
        assert path.stat().st_mode & 0o077 in (0, 0o044), path
    assert (served.folder.console / "key").stat().st_mode & 0o777 == 0o600
    assert served.folder.console.stat().st_mode & 0o777 == 0o700
