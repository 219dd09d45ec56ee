"""Archives for the tests of the source: logs that the test writes, each served by a real process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.archive import logs
from tests.archive.running import Appender, Process, process_in

from godwit.store.sqlite import SqliteStore


class Served:
    """A log and where its archive is."""

    def __init__(self, store: SqliteStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.process: Process | None = None
        self.address = ""
        self.log = store.log_id.hex()

    def add(self, count: int, topic: str = "a", size: int = 10) -> None:
        """Messages in one block; their payloads begin with their number in the block."""
        self.add_payloads([f"{number} ".encode().ljust(size, b".") for number in range(count)], topic)

    def add_payloads(self, payloads: list[bytes], topic: str) -> None:
        """Messages in one block."""
        self.store.append([logs.make_entry(topic, payloads)])


@contextmanager
def served(folder: Path, *arguments: str, log_id: bytes = logs.LOG_ID, port: int = 0) -> Iterator[Served]:
    """A log in this folder, empty if there was none, and an archive on it."""
    folder.mkdir(exist_ok=True)
    store = SqliteStore.open(folder / "log.sqlite", new_log_id=log_id, now_us=logs.NOW_US)
    try:
        place = Served(store, folder)
        with process_in(folder, "--listen", f"127.0.0.1:{port}", *arguments) as process:
            process.appender = Appender(store, folder / "stages")
            place.process = process
            place.address = process.url()
            yield place
    finally:
        store.close()


def options(*places: Served | str, **more: str) -> dict[str, str]:
    """For a reader: of these archives."""
    addresses: Sequence[str] = [place if isinstance(place, str) else place.address for place in places]
    return {"archive": ",".join(addresses)} | more
