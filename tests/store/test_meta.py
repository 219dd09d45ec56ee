"""What a log knows of itself."""

from __future__ import annotations

import apsw
import msgspec
import pytest

from godwit.store.block import STAMP_BYTES
from godwit.store.kept import DamagedRowError
from godwit.store.meta import Meta, load_meta, new_stamp, set_meta
from godwit.store.sql import MIGRATIONS

META = Meta(b"id", 77, b"12345678")


@pytest.fixture
def connection() -> apsw.Connection:
    opened = apsw.Connection(":memory:")
    for script in MIGRATIONS:
        opened.execute(script)
    return opened


def test_it_comes_back(connection: apsw.Connection) -> None:
    with pytest.raises(DamagedRowError, match="lacks a row"):
        load_meta(connection)
    set_meta(connection, META, 5)
    assert load_meta(connection) == META
    assert connection.execute("SELECT value FROM meta WHERE key = 'end_offset'").get == 5


@pytest.mark.parametrize("key", META.__struct_fields__)
def test_a_changed_or_missing_row_is_noticed(connection: apsw.Connection, key: str) -> None:
    set_meta(connection, META)
    connection.execute("UPDATE meta SET value = x'00' WHERE key = ?", (key,))
    with pytest.raises(DamagedRowError, match="not what was written"):
        load_meta(connection)
    connection.execute("DELETE FROM meta WHERE key = ?", (key,))
    with pytest.raises(DamagedRowError, match="lacks a row"):
        load_meta(connection)


def test_a_value_of_another_kind_is_not_taken(connection: apsw.Connection) -> None:
    set_meta(connection, msgspec.structs.replace(META, log_id=3))
    with pytest.raises(DamagedRowError):
        load_meta(connection)


def test_no_two_logs_have_the_same_stamp(connection: apsw.Connection) -> None:
    stamps = {new_stamp(connection) for _ in range(100)}
    assert len(stamps) == 100
    assert {len(stamp) for stamp in stamps} == {STAMP_BYTES}
