"""The client of an archive: broken connections, tokens, and errors that are not retried."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.spark.archives import Served, served

from godwit.spark.archive import Archive, ArchiveError, DataLossError, UnreachableError
from godwit.spark.options import ArchiveAccess


def offsets(archive: Archive, log: str, end: int) -> list[int]:
    batches = archive.read(log, 0, end, topics=(), columns=["offset"], fails_on_data_loss=True, gaps_known_below=0)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_reading_resumes_after_a_broken_connection(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, port=port) as place:
        for _ in range(40):
            place.add(5, size=1_000_000)  # more than the buffers of a connection
        archive = Archive(place.address, ArchiveAccess((place.address,), timeout_s=120))
        batches = archive.read(
            place.log, 0, 200, topics=(), columns=["offset", "payload"], fails_on_data_loss=True, gaps_known_below=0
        )
        found = next(batches).column("offset").to_pylist()
        assert place.process is not None
        place.process.kill()
        again = threading.Thread(target=_serve_again, args=(place, port, done := threading.Event()))
        again.start()
        found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        done.set()
        again.join()
        assert found == list(range(200))


def _serve_again(place: Served, port: int, done: threading.Event) -> None:
    from tests.archive.running import process_in

    with process_in(place.folder, "--listen", f"127.0.0.1:{port}"):
        done.wait(300)


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    address = f"grpc://127.0.0.1:{free_port()}"
    archive = Archive(address, ArchiveAccess((address,), timeout_s=0.2))
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.2 s .*is the broker running there"):
        archive.info()
    with pytest.raises(UnreachableError, match="did not answer"):
        offsets(archive, "0" * 32, 5)


def test_tokens(tmp_path: Path) -> None:
    token_file = tmp_path / "tokens"
    token_file.write_text("secret\n", encoding="utf-8")
    with served(tmp_path / "log", "--token-file", str(token_file)) as place:
        assert Archive(place.address, ArchiveAccess((place.address,), "secret")).info()["log_id"] == place.log
        for token in (None, "wrong"):
            archive = Archive(place.address, ArchiveAccess((place.address,), token))
            with pytest.raises(ArchiveError, match="give the option token or tokenFile"):
                archive.info()
            with pytest.raises(ArchiveError, match="give the option token or tokenFile"):
                offsets(archive, place.log, 1)


def test_a_final_error_is_raised_at_once(tmp_path: Path) -> None:
    with served(tmp_path) as place:
        place.add(2)
        archive = Archive(place.address, ArchiveAccess((place.address,)))
        with pytest.raises(DataLossError, match="the broker's data folder was replaced"):
            offsets(archive, "f" * 32, 2)
        with pytest.raises(ArchiveError, match="there is no action"):
            archive.ask("dance", {})
        with pytest.raises(DataLossError, match="messages are lost"):
            offsets(archive, place.log, 100)
