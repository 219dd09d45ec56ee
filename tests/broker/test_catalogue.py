"""Topics and the numbers that stand for names."""

from __future__ import annotations

import pytest

from godwit.broker import catalogue as catalogues
from godwit.broker.catalogue import Catalogue, Names, TooManyTopicsError
from godwit.broker.journal import Journal
from godwit.broker.settings import Settings
from godwit.errors import BadTopicError

NO_JOURNAL = Journal({}, keeps=False)


def test_topics_of_the_configuration_are_there() -> None:
    catalogue = Catalogue(Settings(topics=("a", "b"), policies=(("a", "explicit"),)), NO_JOURNAL)
    assert len(catalogue) == 2
    topic = catalogue.get("a")
    assert topic is not None
    assert topic.policy == "explicit"
    assert catalogue.get("c") is None


def test_each_topic_has_a_number_of_its_own() -> None:
    catalogue = Catalogue(Settings(), NO_JOURNAL)
    numbers = {catalogue.create(f"t{number}").number for number in range(10)}
    assert len(numbers) == 10


def test_what_cannot_be_created() -> None:
    catalogue = Catalogue(Settings(max_topics=1), NO_JOURNAL)
    with pytest.raises(BadTopicError):
        catalogue.create("a/+")
    catalogue.create("a")
    assert catalogue.is_full
    with pytest.raises(TooManyTopicsError):
        catalogue.create("b")


def test_topics_by_filter_and_in_order() -> None:
    catalogue = Catalogue(Settings(topics=("b/2", "a/1", "b/1")), NO_JOURNAL)
    assert [topic.name for topic in catalogue.after("b/+", None)] == ["b/1", "b/2"]
    assert [topic.name for topic in catalogue.after("#", None)] == ["a/1", "b/1", "b/2"]
    assert [topic.name for topic in catalogue.after("#", "a/1")] == ["b/1", "b/2"]


def test_new_settings_change_the_policy_of_what_is_there() -> None:
    catalogue = Catalogue(Settings(topics=("a",)), NO_JOURNAL)
    catalogue.on_settings(Settings(topics=("a", "b"), default_policy="publishers"))
    assert [topic.policy for topic in catalogue.after("#", None)] == ["publishers", "publishers"]


def test_a_name_keeps_its_number_while_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogues, "MAX_NAMES", 3)
    names = Names()
    first = names.number("a")
    seen = {first}
    for number in range(10):
        assert names.number("a") == first
        seen.add(names.number(f"other {number}"))
    assert len(seen) == 11  # no number is ever used twice
