"""The statements by name, and the steps of the schema."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from godwit.store.sql import MIGRATIONS, QUERIES, load_migrations, parse_queries


def test_statements_are_found_by_name() -> None:
    text = "-- What this is.\n\n-- name: one\nSELECT 1;\n\n-- name: two\n-- why\nSELECT 2\nFROM x;\n"
    assert parse_queries(text) == {"one": "SELECT 1;", "two": "-- why\nSELECT 2\nFROM x;"}


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="named one"):
        parse_queries("\n-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n")


def test_versions_are_read_in_order_as_far_as_they_go(tmp_path: Path) -> None:
    for version in (1, 2, 3, 10, 11):
        (tmp_path / f"schema_{version}.sql").write_text(f"-- {version}", encoding="utf-8")
    assert load_migrations(tmp_path) == ("-- 1", "-- 2", "-- 3")
    assert len(MIGRATIONS) >= 1


def test_every_statement_fits_the_schema() -> None:
    connection = apsw.Connection(":memory:")
    for script in MIGRATIONS:
        connection.execute(script)
    for name, statement in QUERIES.items():
        connection.execute(statement, [None] * statement.count("?"), explain=1).fetchall()
        assert name.partition("_")[0] in {"insert", "select", "upsert", "replace", "delete"}
