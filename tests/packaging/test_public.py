"""What is public is complete, there, and what its page says."""

import re
from pathlib import Path

import fedpeer
import participant

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "public.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE)
    assert found is not None, title
    return found[1]


def test_the_face_has_what_its_page_says_and_nothing_else() -> None:
    named = set(re.findall(r"`(\w+)`", section("`fedpeer`")))
    assert named == set(fedpeer.__all__)
    for name in named:
        assert getattr(fedpeer, name)
    assert dir(fedpeer) == sorted(fedpeer.__all__)


def test_both_ways_lead_to_the_same_names() -> None:
    for name in set(fedpeer.__all__) & set(participant.__all__):
        assert getattr(fedpeer, name) is getattr(participant, name)


def test_what_tests_use_is_what_the_page_says() -> None:
    from fedpeer import pytest_plugin, testing

    named = set(re.findall(r"`(\w+)`", section("`fedpeer.testing`")))
    assert named == {*testing.__all__, "fedpeer_market"}
    assert hasattr(pytest_plugin, "fedpeer_market")


def test_the_groups_of_the_page_are_all_that_there_are() -> None:
    from fedpeer import extensions

    groups = {value for name, value in vars(extensions).items() if name.isupper()}
    assert set(re.findall(r"`(fedpeer\.\w+)`", section("Extensions"))) == groups


def test_the_commands_of_the_page_are_all_that_there_are() -> None:
    from fedpeer.__main__ import _FUNCTIONS, _GROUPS

    named = set(re.findall(r"`(?:fedpeer )?(\w+)`", section("Commands")))
    assert named == {*_FUNCTIONS, *_GROUPS}


def test_the_version_is_the_distributions() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", fedpeer.__version__)
