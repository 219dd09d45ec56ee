"""The rights of archive tokens."""

from __future__ import annotations

import pytest

from godwit.broker.access import TokenRights
from godwit.errors import ConfigurationError


def test_without_rights_everything_but_names_with_a_secret() -> None:
    rights = TokenRights()
    assert not rights.read_problem([])
    assert not rights.read_problem(["$jobs/#"])
    assert not rights.publish_problem("any/topic")
    assert not rights.name_problem("spark", has_secret=False)
    assert not rights.staging_problem()
    assert "'pump', which has a secret: choose another name, or ask" in rights.name_problem("pump", has_secret=True)


def test_listed_names_may_have_a_secret_and_others_are_refused() -> None:
    rights = TokenRights(names=("pump-?", "spark"))
    assert not rights.name_problem("pump-1", has_secret=True)
    assert not rights.name_problem("spark", has_secret=False)
    for has_secret in (True, False):
        assert "it may publish under 'pump-?', 'spark'" in rights.name_problem("pump-12", has_secret=has_secret)


def test_topics_to_publish_to() -> None:
    rights = TokenRights(publish=("alerts/#", "home/+/state"))
    assert not rights.publish_problem("alerts/a/b")
    assert not rights.publish_problem("home/kitchen/state")
    assert "may not publish to 'home/kitchen'" in rights.publish_problem("home/kitchen")
    assert "it may publish to nothing" in TokenRights(publish=()).publish_problem("a")


def test_filters_to_read() -> None:
    rights = TokenRights(read=("home/#", "#"))
    assert not rights.read_problem(["home/+", "garage"])
    assert "it may read 'home/#', '#'" in rights.read_problem(["home/+", "$jobs/#"])
    assert "may not read all topics" in rights.read_problem([])
    assert "may read nothing" in TokenRights(read=()).read_problem(["a"])


@pytest.mark.parametrize("rights", [TokenRights(publish=()), TokenRights(names=())])
def test_tokens_that_only_read(rights: TokenRights) -> None:
    assert rights.staging_problem() == "the token may only read"


@pytest.mark.parametrize(
    ("rights", "complaint"),
    [
        (TokenRights(read=("a/#/b",)), "'#' before its end"),
        (TokenRights(publish=("",)), "is empty"),
        (TokenRights(names=("x" * 2000,)), "must have 1 to"),
        (TokenRights(names=("x",) * 65), "names has 65 entries: at most 64"),
    ],
)
def test_what_cannot_be_meant(rights: TokenRights, complaint: str) -> None:
    TokenRights(read=("a/#",), publish=("+",), names=("*",)).check()
    with pytest.raises(ConfigurationError, match=complaint):
        rights.check()
