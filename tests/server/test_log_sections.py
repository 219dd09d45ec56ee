"""What a configuration says of the log's retention and of the archive."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from godwit.errors import ConfigurationError
from godwit.limits import KIB, MIB
from godwit.server.log_sections import ArchiveSection, read_archive_section, read_log_section
from godwit.server.toml_table import Table
from godwit.store.retention import RetentionRule

FOLDER = Path("/etc/godwit")


def log(text: str) -> tuple[Path | None, tuple[RetentionRule, ...]]:
    return read_log_section(Table("log", tomllib.loads(text)), FOLDER)


def archive(text: str) -> ArchiveSection:
    return read_archive_section(Table("archive", tomllib.loads(text)), FOLDER)


def test_nothing_is_deleted_unless_it_is_said() -> None:
    assert log("") == (None, ())
    assert archive("") == ArchiveSection(is_on=True, listen=None)


def test_paths_are_meant_from_where_the_file_lies() -> None:
    assert log('data = "messages"')[0] == FOLDER / "messages"
    assert log('data = "/var/lib/godwit"')[0] == Path("/var/lib/godwit")
    found = archive('listen = "[::1]:7"\ntoken_file = "tokens"\ncertificate = "a.crt"\nkey = "/a.key"')
    assert found == ArchiveSection(
        listen="[::1]:7", token_file=FOLDER / "tokens", certificate=FOLDER / "a.crt", key=Path("/a.key")
    )


@pytest.mark.parametrize(
    ("text", "age_s"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ('"90s"', 90),
        ('"5m"', 300),
        ('"1.5 h"', 5400),
        ('"30d"', 2_592_000),
        ('"2w"', 1_209_600),
    ],
)
def test_ages(text: str, age_s: float) -> None:
    assert log(f"max_age = {text}")[1] == (RetentionRule(None, age_s, None),)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("2_000_000", 2_000_000),
        ('"2000000B"', 2_000_000),
        ('"1024 KiB"', MIB),
        ('"1.5MiB"', 3 * MIB // 2),
        ('"10GiB"', 10 * 1024 * MIB),
        ('"2TB"', 2 * 10**12),
        ('"2TiB"', 2 * KIB * KIB * MIB),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    rule = log(f"max_bytes = {text}")[1][0]
    assert rule == RetentionRule(None, None, size_bytes)
    assert type(rule.max_bytes) is int


def test_rules_stand_in_their_order_and_the_broker_s_own_last() -> None:
    text = """
        max_age = "1d"
        [[rule]]
        filter = "a/#"
        max_bytes = "5MB"
        [[rule]]
        filter = "a/b"
    """
    assert log(text)[1] == (
        RetentionRule("a/#", None, 5_000_000),
        RetentionRule("a/b", None, None),
        RetentionRule(None, 86400.0, None),
    )


def test_no_archive() -> None:
    assert archive('listen = "none"') == ArchiveSection(is_on=False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_age = true", "log.max_age is true or false: it must be a number"),
        ('max_age = "30 years"', 'log.max_age is not understood: write it as "30d", "12h" or a number of seconds'),
        ('max_age = "1M"', "log.max_age is not understood"),
        ("max_age = 0", "log.max_age is 0: it must be 1 s at least"),
        ("max_age = nan", "log.max_age is nan: it must be 1 s at least"),
        ('max_bytes = "10gib"', 'log.max_bytes is not understood: write it as "10GiB"'),
        ("max_bytes = 1000", "log.max_bytes is 1000: it must be 1 MiB at least"),
        ('max_bytes = "99999999TB"', "log.max_bytes is 1e+20: leave the key out for no bound"),
        ('data = ""', "log.data is empty: give a path"),
        ("maxage = 1", "log.maxage is not a known key; did you mean max_age?"),
        ('[[rule]]\nfilter = "a#"', "log.rule number 1: filter 'a#' has '#' inside"),
        ("[[rule]]\nmax_age = 5", "log.rule number 1: filter is missing"),
    ],
)
def test_what_is_wrong_in_the_log_s_section_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        log(text)
    assert str(raised.value).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('certificate = "a"', "archive has only one of certificate and key: give both, or none"),
        ('key = "a"', "archive has only one of certificate and key"),
        ("listen = 5", "archive.listen is a whole number: it must be text in quotes"),
        ('tokens = "a"', "archive.tokens is not a known key; did you mean token_file?"),
    ],
)
def test_what_is_wrong_in_the_archive_s_section_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        archive(text)
    assert str(raised.value).startswith(complaint)
