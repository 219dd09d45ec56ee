"""Options of format("godwit"): their values, and the errors of invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from godwit.spark.options import (
    TOKEN_VARIABLE,
    ArchiveAccess,
    OptionError,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)

HERE = {"archive": "localhost"}


def test_the_defaults() -> None:
    access = ArchiveAccess(("grpc://localhost:50001",))
    assert read_options(HERE, is_stream=True) == ReadOptions(access)
    assert write_options(HERE) == WriteOptions(access)


def test_all_of_them_in_any_case() -> None:
    found = read_options(
        {
            "Archive": "a:1, grpc+tls://[::1]:2",
            "TOPICS": "home/#, office/+",
            "startingtime": "2026-11-15T12:00:00Z",
            "maxRowsPerTrigger": "10",
            "maxBytesPerTrigger": "2000",
            "minPartitions": "3",
            "failOnDataLoss": "False",
            "archiveTimeout": "2.5s",
            "token": "secret",
        },
        is_stream=True,
    )
    assert found.access == ArchiveAccess(("grpc://a:1", "grpc+tls://[::1]:2"), "secret", None, 2.5)
    assert found.topics == ("home/#", "office/+")
    assert found.starting_time_us == 1_794_744_000_000_000
    assert (found.max_rows, found.max_bytes, found.min_partitions) == (10, 2000, 3)
    assert not found.fails_on_data_loss
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "the option archive is missing"),
        ({"archive": "http://x"}, "its scheme is grpc or grpc+tls"),
        ({"archive": "x:99999"}, "give HOST or HOST:PORT"),
        ({"archive": "x,x:50001"}, "the same address twice"),
        (HERE | {"topic": "a"}, "has no option 'topic' to read"),
        (HERE | {"maxRowsPerTrigger": "0"}, "give a whole number above 0"),
        (HERE | {"maxRowsPerTrigger": "many"}, "give a whole number above 0"),
        (HERE | {"failOnDataLoss": "no"}, "give true or false"),
        (HERE | {"archiveTimeout": "soon"}, "give seconds"),
        (HERE | {"startingTime": "noon"}, "give a time as in"),
        (HERE | {"startingTime": "0", "startingOffsets": "latest"}, "exclude each other"),
        (HERE | {"endingOffsets": "latest"}, "a stream has no end"),
        (HERE | {"startingOffsets": "first"}, "'earliest', 'latest', or JSON"),
        (HERE | {"token": "a", "tokenFile": "b"}, "exclude each other"),
        (HERE | {"tokenFile": "/nowhere/token"}, "cannot read /nowhere/token"),
        (HERE | {"topics": ",".join(["a"] * 65)}, "65 filters: at most 64"),
    ],
)
def test_invalid_options_to_read(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(options, is_stream=True)
    assert complaint in str(raised.value)


def test_a_batch_has_an_end() -> None:
    found = read_options(HERE | {"endingTime": "1000"}, is_stream=False)
    assert found.ending_time_us == 1_000_000
    with pytest.raises(OptionError, match="would find nothing"):
        read_options(HERE | {"startingOffsets": "latest"}, is_stream=False)
    with pytest.raises(OptionError, match="would find nothing"):
        read_options(HERE | {"endingOffsets": "earliest"}, is_stream=False)


@pytest.mark.parametrize(
    ("archive", "is_exposed"),
    [
        ("localhost", False),
        ("127.0.0.7:5", False),
        ("[::1]:5", False),
        ("grpc+tls://broker.example", False),
        ("broker.example", True),
        ("192.0.2.7:50001", True),
        ("[2001:db8::7]:5", True),
        ("localhost.example", True),
    ],
)
def test_a_warning_of_a_token_without_encryption(archive: str, is_exposed: bool) -> None:
    access = read_options({"archive": f"127.0.0.1:1,{archive}", "token": "secret"}, is_stream=True).access
    warning = access.plain_token_warning()
    assert bool(warning) == is_exposed
    if is_exposed:
        assert access.addresses[1] in warning
        assert "127.0.0.1" not in warning
        assert "secret" not in warning
        assert "use grpc+tls://" in warning
    assert not read_options({"archive": archive}, is_stream=True).access.plain_token_warning()


def test_the_token_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert write_options(HERE).access.token == "from-environment"
    path = tmp_path / "token"
    path.write_text("\n  from-file \n", encoding="utf-8")
    assert write_options(HERE | {"tokenFile": str(path)}).access.token == "from-file"
    path.write_text('of-broker {"publish": []}\n', encoding="utf-8")
    assert write_options(HERE | {"tokenFile": str(path)}).access.token == "of-broker"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(OptionError, match="has no token in it"):
        write_options(HERE | {"tokenFile": str(path)})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (HERE | {"archive": "a,b"}, "rows are written to one"),
        (HERE | {"qos": "0"}, "choose 1 or 2"),
        (HERE | {"batch": "3"}, "give its name as the option query"),
        (HERE | {"query": "q", "batch": "-1"}, "give a whole number from 0"),
        (HERE | {"topics": "a"}, "has no option 'topics' to write"),
    ],
)
def test_invalid_options_to_write(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError) as raised:
        write_options(options)
    assert complaint in str(raised.value)
