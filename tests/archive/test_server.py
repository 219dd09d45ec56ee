"""The Flight server, with real clients over the network; in this process, so that its limits can be made small."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.archive import logs
from tests.archive.client import ArchiveClient
from tests.archive.running import PATIENCE_S, Appender, log_in

from godwit.archive import call_limits, server, staged_rows, stages
from godwit.archive.actions import Actions
from godwit.archive.columns import COLUMNS
from godwit.archive.range_reader import ReaderPool
from godwit.archive.server import ArchiveServer
from godwit.archive.stages import Stages
from godwit.archive.tokens import TokenFile
from godwit.broker.access import TokenRights
from godwit.store.sqlite import SqliteStore
from godwit.wire.changes import TopicRow

CERTIFICATES = Path(__file__).parent / "certificates"
ROWS = pa.table({"topic": ["a", "b"], "payload": [b"1", b"2"]})


class Serving:
    """A log, and an archive of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._exit = ExitStack()
        self.folder = folder
        self.told: list[str] = []
        self.store: SqliteStore = self._exit.enter_context(log_in(folder))
        self.readers = ReaderPool(folder / "log.sqlite")
        self._exit.callback(self.readers.close)
        self.stages = Stages(folder / "stages")
        self.appender = Appender(self.store, folder / "stages")
        actions = Actions(self.readers, self.stages, self.appender)
        scheme = "grpc+tls" if options.get("certificate") else "grpc"
        self.server = ArchiveServer(
            f"{scheme}://127.0.0.1:0",
            readers=self.readers,
            stages=self.stages,
            actions=actions,
            warn=self.told.append,
            **options,
        )
        self._exit.callback(self.server.shutdown)
        self.url = f"{scheme}://127.0.0.1:{self.server.port}"

    def client(self, **options: Any) -> ArchiveClient:
        return self._exit.enter_context(ArchiveClient(self.url, **options))

    def raw(self) -> flight.FlightClient:
        client = flight.connect(self.url)
        self._exit.callback(client.close)
        return client

    def close(self) -> None:
        self._exit.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def until(is_so: Callable[[], bool]) -> None:
    """The other end of a connection hears of things in its own time."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value)


def fill(store: SqliteStore, count: int, payload_bytes: int = 10, topic: str = "home/a") -> None:
    """Append `count` messages, in blocks of up to 500."""
    while count > 0:
        part = min(count, 500)
        store.append([logs.make_entry(topic, [bytes(payload_bytes)] * part)])
        count -= part


# -- reading ----------------------------------------------------------------------------------------------------------


def test_flight_info_pins_the_range(serving: Serving) -> None:
    fill(serving.store, 100)
    raw = serving.raw()
    info = raw.get_flight_info(flight.FlightDescriptor.for_command(b'{"filters": ["home/#"], "columns": ["offset"]}'))
    fill(serving.store, 50)
    assert json.loads(info.app_metadata) == {"start": 0, "end": 100, "gaps_known_below": 0, "first_offset": 0}
    assert info.schema.names == ["offset"]
    (endpoint,) = info.endpoints
    assert raw.do_get(endpoint.ticket).read_all()["offset"].to_pylist() == list(range(100))


def test_flights_are_topics(serving: Serving) -> None:
    serving.store.append([logs.make_entry("a/b")], [TopicRow("a/b", 1, 4, 5), TopicRow("c", 0, 0, 0)])
    raw = serving.raw()
    infos = list(raw.list_flights())
    assert [json.loads(info.app_metadata)["name"] for info in infos] == ["a/b", "c"]
    assert raw.do_get(infos[0].endpoints[0].ticket).read_all().num_rows == 1
    assert [json.loads(info.descriptor.command)["filters"] for info in raw.list_flights(b'{"filters": ["a/#"]}')] == [
        ["a/b"]
    ]


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda raw: raw.do_get(flight.Ticket(b"nonsense")).read_all(), "is wrong"),
        (lambda raw: raw.do_get(flight.Ticket(b"x" * 5_000_000)).read_all(), "at most 131072 are allowed"),
        (lambda raw: raw.do_get(flight.Ticket(b'{"start": 9, "end": 5}')).read_all(), "swap them"),
        (lambda raw: raw.get_flight_info(flight.FlightDescriptor.for_command(b"[]")), "is wrong"),
        (lambda raw: raw.get_flight_info(flight.FlightDescriptor.for_path("a")), "give a command"),
        (lambda raw: list(raw.list_flights(b'{"filters": ["#/a"]}')), "'#' before its end"),
        (lambda raw: list(raw.do_action(flight.Action("drop", b""))), "no action 'drop': choose from info"),
        (lambda raw: list(raw.do_action(flight.Action("offset_for_time", b"{}"))), "time_us"),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(
    serving: Serving, ask: Callable[[flight.FlightClient], object], complaint: str
) -> None:
    with pytest.raises(flight.FlightServerError) as error:
        ask(serving.raw())
    assert complaint in names(error)
    assert serving.client().info()["next_offset"] == 0  # it goes on


def test_loss_is_an_error_with_details_for_programs(serving: Serving) -> None:
    fill(serving.store, 10)
    with pytest.raises(flight.FlightServerError) as error:
        list(serving.client().read(start=5, end=20))
    assert "offsets 10 to 19 cannot be read: the log ends at 10" in names(error)
    assert json.loads(error.value.extra_info) == {"kind": "data_loss", "lost": [[10, 20]]}


def test_actions_are_listed(serving: Serving) -> None:
    listed = [action.type for action in serving.raw().list_actions()]
    assert listed == ["info", "offset_for_time", "measure", "topics", "stage_commit", "stage_abort"]


def test_a_client_that_stops_in_the_middle_leaves_nothing_behind(serving: Serving) -> None:
    fill(serving.store, 60_000, payload_bytes=1000)
    client = serving.client()
    for _ in range(3):
        assert next(client.read()).num_rows
    until(lambda: serving.server._streams.active == 0)
    assert sum(batch.num_rows for batch in client.read()) == 60_000


def test_readings_at_once_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    serving.server._streams._limit = 3
    monkeypatch.setattr(server, "FULL_STREAMS", 1)  # the others read in small chunks, and miss nothing
    fill(serving.store, 60_000, payload_bytes=1000)
    client = serving.client()
    readings = [client.read(columns=["offset"] if number else COLUMNS) for number in range(3)]
    held = [next(reading).num_rows for reading in readings]
    with pytest.raises(flight.FlightUnavailableError, match="3 reads are under way already: try again"):
        next(client.read())
    assert client.info()["next_offset"] == 60_000  # a question is answered all the same
    for number, reading in enumerate(readings):
        assert held[number] + sum(batch.num_rows for batch in reading) == 60_000
    until(lambda: serving.server._streams.active == 0)
    assert next(client.read()).num_rows


def test_many_connections_that_say_nothing(serving: Serving) -> None:
    fill(serving.store, 10)
    with ExitStack() as exits:
        for number in range(200):
            quiet = exits.enter_context(socket.create_connection(("127.0.0.1", serving.server.port)))
            if number % 2:
                quiet.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sum(batch.num_rows for batch in serving.client().read()) == 10


# -- staged writes ----------------------------------------------------------------------------------------------------


def test_stage_commit_and_read(serving: Serving) -> None:
    client = serving.client()
    client.stage(ROWS, query="q", batch=1, partition=0, attempt=0, publisher="spark")
    assert serving.store.next_offset == 0
    done = client.commit("q", 1, [(0, 0)])
    assert done == {"first_offset": 0, "count": 2, "was_known": False}
    rows = logs.listed(*client.read())
    assert [(row["topic"], row["payload"], row["publisher"]) for row in rows] == [
        ("a", b"1", "spark"),
        ("b", b"2", "spark"),
    ]
    assert not list((serving.folder / "stages").iterdir())


def test_rows_that_cannot_be_staged_leave_nothing(serving: Serving) -> None:
    client = serving.client()
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    for rows, complaint in (
        (pa.table({"topic": ["a"]}), "no column payload"),
        (pa.table({"topic": ["a", "b/#"], "payload": [b"", b""]}), "wildcards"),
        (pa.table({"topic": ["a", None], "payload": [b"", b""]}), "topic is null in row 1"),
    ):
        with pytest.raises(flight.FlightServerError, match=complaint):
            client.stage(rows, **name)
    with pytest.raises(flight.FlightServerError, match="publisher is 0 bytes"):
        client.stage(ROWS, **name | {"publisher": ""})
    assert not list((serving.folder / "stages").iterdir())


def test_stages_are_bounded(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MAX_STAGE_BYTES", 1000)
    monkeypatch.setattr(stages, "MAX_STAGES", 1)
    client = serving.client()
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    with pytest.raises(flight.FlightServerError, match="a stage holds at most 1000 bytes"):
        client.stage(pa.table({"topic": ["a"], "payload": [bytes(2000)]}), **name)
    monkeypatch.setattr(staged_rows, "MAX_STAGE_BYTES", 100)
    with pytest.raises(flight.FlightServerError, match="send smaller ones"):
        client.stage(pa.table({"topic": ["a"], "payload": [bytes(2000)]}), **name)
    client.stage(pa.table({"topic": ["a"], "payload": [b"x"]}), **name)
    with pytest.raises(flight.FlightUnavailableError, match="1 stages wait to be committed"):
        client.stage(pa.table({"topic": ["a"], "payload": [b"x"]}), **name | {"partition": 1})
    assert client.abort("q", 1) == 1


def test_uploads_at_once_are_bounded(serving: Serving) -> None:
    serving.server._uploads._limit = 2
    raw = serving.raw()
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    writers = []
    for partition in range(2):
        descriptor = flight.FlightDescriptor.for_command(json.dumps(name | {"partition": partition}).encode())
        writer, _ = raw.do_put(descriptor, ROWS.schema)
        writer.write_table(ROWS)
        writers.append(writer)
    until(lambda: serving.server._uploads.active == 2)
    with pytest.raises(flight.FlightUnavailableError, match="2 stages are under way"):
        serving.client().stage(ROWS, **name | {"partition": 2})
    for writer in writers:
        writer.close()
    assert serving.client().commit("q", 1, [(1, 0), (0, 0)])["count"] == 4


BREAKS_OFF = """
import sys, time
import pyarrow as pa
from pyarrow import flight
client = flight.connect(sys.argv[1])
rows = pa.table({"topic": ["a"], "payload": [b"x"]})
writer, _ = client.do_put(flight.FlightDescriptor.for_command(sys.argv[2].encode()), rows.schema)
writer.write_table(rows)
print("written", flush=True)
time.sleep(600)
"""


def test_an_upload_that_breaks_off_was_never_there(serving: Serving) -> None:
    name = json.dumps({"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"})
    command = [sys.executable, "-c", BREAKS_OFF, serving.url, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"written\n"
        until(lambda: serving.server._uploads.active == 1)
        client.kill()
    until(lambda: serving.server._uploads.active == 0)
    assert not list((serving.folder / "stages").iterdir())
    with pytest.raises(flight.FlightServerError, match="are staged here"):
        serving.client().commit("q", 1, [(0, 0)])


def test_an_upload_that_stands_still_gives_way(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    serving.server._uploads._limit = 2
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    with ExitStack() as exits:
        for partition in range(2):  # processes of their own: clients of one process share a connection
            command = [sys.executable, "-c", BREAKS_OFF, serving.url, json.dumps(name | {"partition": partition})]
            client = exits.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            exits.callback(client.kill)
            assert client.stdout is not None
            assert client.stdout.readline() == b"written\n"
        until(lambda: serving.server._uploads.active == 2)
        with pytest.raises(flight.FlightUnavailableError, match="2 stages are under way"):
            serving.client().stage(ROWS, **name | {"partition": 2})
        monkeypatch.setattr(call_limits, "STALLED_S", 0.0)
        serving.client().stage(ROWS, **name | {"partition": 2})
        assert serving.client().commit("q", 1, [(2, 0)])["count"] == 2
        until(lambda: serving.server._uploads.active == 1)
        monkeypatch.setattr(call_limits, "EXPIRY_S", 0.0)
        assert serving.server.expire_uploads() == 1
        until(lambda: serving.server._uploads.active == 0)
        assert not list((serving.folder / "stages").iterdir())


def test_a_commit_of_very_many_batches_cannot_be_staged(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "MAX_COMMIT_BATCHES", 9)
    times = pa.array([0, 2**40] * 5, pa.timestamp("us", "UTC"))
    rows = pa.table({"topic": ["a"] * 10, "payload": [b""] * 10, "published": times})
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    with pytest.raises(flight.FlightServerError, match="these rows make more than 9 batches"):
        serving.client().stage(rows, **name)
    serving.client().stage(rows.slice(1), **name)


# -- what clients are told --------------------------------------------------------------------------------------------


def test_errors_tell_a_client_nothing_of_files_and_code(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serving.client()
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0, "publisher": "p"}
    said = []

    def ask(call: Callable[[], object]) -> flight.FlightError:
        with pytest.raises(flight.FlightError) as error:
            call()
        said.append(names(error))
        return error.value

    refused = ask(lambda: list(client.read(columns=["x"])))
    assert json.loads(refused.extra_info) == {"kind": "bad_request"}
    ask(lambda: client.stage(ROWS, **name | {"publisher": "\ud800"}))
    ask(lambda: client.commit("q", 1, [(0, 0)]))
    (serving.folder / "stages").rmdir()
    ask(lambda: client.stage(ROWS, **name))
    assert "the disk or the log of the archive failed" in said[-1]
    assert str(serving.folder) in serving.told[0]

    def fail(*_: object) -> None:
        raise KeyError("an unexpected error")

    monkeypatch.setattr(serving.server._actions, "answer", fail)
    assert isinstance(ask(client.info), flight.FlightInternalError)
    assert "KeyError: 'an unexpected error'" in serving.told[1]
    for text in said:
        assert "Traceback" not in text
        assert ".py" not in text
        assert str(serving.folder) not in text


# -- access -----------------------------------------------------------------------------------------------------------


def test_a_token_is_needed_for_everything(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("secret\n", encoding="utf-8")
    serving = Serving(tmp_path, tokens=TokenFile(tmp_path / "tokens", print))
    try:
        fill(serving.store, 10)
        good, bad, none = serving.client(token="secret"), serving.client(token="guess"), serving.client()
        good.stage(ROWS, query="q", batch=1, partition=0, attempt=0, publisher="p")
        assert good.info()["next_offset"] == 10
        assert sum(batch.num_rows for batch in good.read()) == 10
        for client, complaint in ((bad, "the token is unknown"), (none, "wants a token")):
            for call in (
                client.info,
                lambda client=client: list(client.read()),
                lambda client=client: list(client.topics()),
                lambda client=client: client.stage(ROWS, query="q", batch=1, partition=1, attempt=0, publisher="p"),
                lambda client=client: client.commit("q", 1, [(0, 0)]),
            ):
                with pytest.raises(flight.FlightUnauthenticatedError, match=complaint):
                    call()
        assert serving.store.next_offset == 10
        with pytest.raises(flight.FlightUnauthenticatedError):
            serving.raw().get_flight_info(flight.FlightDescriptor.for_command(b"{}"))
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(serving.raw().list_flights())
    finally:
        serving.close()


TOKENS = """plain
alerts {"publish": ["alerts/#"], "names": ["night-*"], "read": ["home/#"]}
reader {"publish": []}
"""


def test_a_token_has_topics_and_names(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKENS, encoding="utf-8")
    serving = Serving(tmp_path, tokens=TokenFile(tmp_path / "tokens", print))
    name: dict[str, Any] = {"query": "q", "batch": 1, "partition": 0, "attempt": 0}
    alert = pa.table({"topic": ["alerts/a"], "payload": [b"1"]})
    try:
        fill(serving.store, 10)
        plain, alerts, reader = (serving.client(token=token) for token in ("plain", "alerts", "reader"))
        plain.stage(ROWS, **name, publisher="anything")
        assert plain.commit("q", 1, [(0, 0)])["count"] == 2
        assert serving.appender.rights == TokenRights()  # the broker knows which names have a secret
        assert sum(batch.num_rows for batch in reader.read()) == 12
        assert sum(batch.num_rows for batch in alerts.read(["home/+"])) == 10
        alerts.stage(alert, **name | {"batch": 2}, publisher="night-job")
        for call, complaint in (
            (lambda: alerts.stage(ROWS, **name, publisher="night-job"), "may not publish to '[ab]': it may publish to"),
            (lambda: alerts.stage(alert, **name, publisher="day-job"), "may not publish under the name 'day-job'"),
            (lambda: reader.stage(alert, **name, publisher="p"), "may only read"),
            (lambda: reader.commit("q", 2, [(0, 0)]), "may only read"),
            (lambda: reader.abort("q", 2), "may only read"),
            (lambda: list(alerts.read()), "may not read all topics: give filters; it may read 'home/#'"),
            (lambda: list(alerts.read(["home/a", "#"])), "may not read '#'"),
            (lambda: list(alerts.topics(["garage"])), "may not read 'garage'"),
        ):
            with pytest.raises(flight.FlightUnauthorizedError, match=complaint):
                call()
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer alerts")])
        with pytest.raises(flight.FlightUnauthorizedError):
            serving.raw().get_flight_info(flight.FlightDescriptor.for_command(b"{}"), options)
        with pytest.raises(flight.FlightUnauthorizedError):
            list(serving.raw().list_flights(b"", options))
        assert alerts.commit("q", 2, [(0, 0)])["count"] == 1
        assert serving.appender.rights == TokenRights(("home/#",), ("alerts/#",), ("night-*",))
        assert not serving.told
    finally:
        serving.close()


def test_tls_with_a_given_certificate(tmp_path: Path) -> None:
    certificate = (CERTIFICATES / "certificate.pem").read_bytes()
    serving = Serving(tmp_path, certificate=(certificate, (CERTIFICATES / "key.pem").read_bytes()))
    try:
        fill(serving.store, 10)
        assert sum(batch.num_rows for batch in serving.client(certificates=certificate).read()) == 10
        with pytest.raises(flight.FlightUnavailableError):
            serving.client(timeout_s=PATIENCE_S).info()  # trusts the system's certificates, of which this is none
        with pytest.raises(flight.FlightUnavailableError), ArchiveClient(serving.url.replace("+tls", "")) as plain:
            plain.info()
    finally:
        serving.close()
