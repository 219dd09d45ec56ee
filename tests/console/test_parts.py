"""The parts of the console that need no network: figures, the tree of topics, payloads, logins, pages of clients."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from godwit.console import pages
from godwit.console.catalogue import TopicCatalogue
from godwit.console.connection import MAX_CACHED, BrowserConnection
from godwit.console.figures import NODE_BEHIND, PERIOD_S, FigureHistory, cluster_state
from godwit.console.link import BrokerLink
from godwit.console.logins import FREE_FAILURES, IDLE_S, MAX_WAIT_S, LoginLimiter, LoginSessions
from godwit.console.tail import DETAIL_BYTES, payload_detail, payload_form
from godwit.errors import GodwitError
from godwit.wire.control import ClientInfo, CursorInfo, TopicInfo


def history(**figures: int) -> FigureHistory:
    made = FigureHistory()
    feed(made, **figures)
    return made


def feed(made: FigureHistory, **figures: int) -> None:
    for name, figure in figures.items():
        made.handle_figure(f"$sys/{name.replace('__', '/')}", str(figure).encode())


def test_rates_are_growth_per_second() -> None:
    made = history(messages__in=100, network__packets__sent=1000, network__packets__lost=0)
    assert made.add_sample(10.0).messages_in is None
    feed(made, messages__in=300, network__packets__sent=2000, network__packets__lost=50)
    sample = made.add_sample(12.0)
    assert sample.messages_in == 100.0
    assert sample.loss_percent == 5.0
    feed(made, messages__in=5)  # the broker was started again
    assert made.add_sample(14.0).messages_in is None
    made.add_sample(14.0 + 2 * PERIOD_S)
    assert len(made.samples) == 1
    assert made.columns()["at"] == [14.0 + 2 * PERIOD_S]


def test_problems_are_sorted_and_explained() -> None:
    made = history(
        log__writable=0, log__disk__free_bytes=5, log__disk__size_bytes=100, subscriptions__behind__connected=2,
        subscriptions__lag__connected=7000, subscriptions__behind__absent=1, logins__refused=1,
        network__dropped__packet__checksum=0, messages__dropped=0,
    )  # fmt: skip
    made.add_sample(1.0)
    feed(made, logins__refused=4, network__dropped__packet__checksum=9, messages__dropped=3)
    feed(made, network__dropped__packet__repeated=99)
    made.add_sample(2.0)
    found = {one.title: one for one in made.problems()}
    assert [one.level for one in made.problems()] == sorted(
        [one.level for one in found.values()], key=["error", "warning", "note"].index
    )
    assert "5.0 %" in found["The disk is nearly full"].text
    assert "7,000 messages" in found["Subscribers are behind"].text
    assert found["Logins were refused"].text.startswith("3 in the last")
    assert "9 packets" in found["Packets were dropped"].text
    assert "checksum" in found["Packets were dropped"].text
    assert set(found) == {
        "The log cannot be written", "The disk is nearly full", "Subscribers are behind", "Logins were refused",
        "Absent subscribers have messages", "Packets were dropped", "Messages were dropped",
    }  # fmt: skip
    assert FigureHistory().problems() == []


def test_nodes_of_a_cluster_are_reported() -> None:
    made = history(messages__in=1)
    assert cluster_state(made.current) is None
    for name, figure in {
        "name": "plant", "node": "one", "epoch": 3, "nodes": 2, "node/one/state": "active", "node/one/behind": 0,
        "node/two/state": "standby", "node/two/address": "10.0.0.2:50000", "node/two/behind": NODE_BEHIND + 1,
        "node/two/problem": "its disk is full", "node/three/state": "away", "node/three/behind": 5_000,
        "node/three/problem": "its engine is silent", "node/one/problem": "",
    }.items():  # fmt: skip
        made.handle_figure(f"$sys/cluster/{name}", str(figure).encode())
    found = cluster_state(made.current)
    assert found is not None
    assert (found.name, found.node, found.epoch) == ("plant", "one", 3)
    states = [(one.node, one.state, one.address) for one in found.nodes]
    assert states == [("one", "active", ""), ("three", "away", ""), ("two", "standby", "10.0.0.2:50000")]
    problems = {one.title: one.text for one in made.problems()}
    assert problems["Nodes of the cluster are away"].startswith("three: ")
    assert problems["Nodes of the cluster are behind"] == "two by 1,001 records."
    assert problems["Nodes of the cluster are not ready"] == "two: its disk is full."


def test_figures_of_a_hostile_broker_are_bounded() -> None:
    made = FigureHistory()
    for number in range(5000):
        made.handle_figure(f"$sys/{number}", b"\xff" * 20_000)
    assert len(made.current) == 1000
    assert len(made.current["0"]) == 10_000
    made.handle_figure("$sys/messages/in", b"not a number")
    assert made.add_sample(1.0).messages_in is None


def test_topics_are_a_tree_in_pages() -> None:
    names = [f"site{n % 10}/d{n}" for n in range(1000)] + ["", "/", "/x", "site1"]
    infos = [TopicInfo(name=name, messages=number) for number, name in enumerate(sorted(set(names) - {""}))]

    async def scenario() -> None:
        catalogue = TopicCatalogue(lambda: asyncio.sleep(0, infos))
        await catalogue.refresh()
        page = catalogue.page((), "", "name", 0, 100)
        assert page["topics"] == len(infos)
        assert [row["label"] for row in page["rows"]] == ["", *[f"site{n}" for n in range(10)]]
        assert page["rows"][2]["topics"] == 101  # with site1 itself
        page = catalogue.page({"site1"}, "", "messages", 0, 5)
        assert (page["total"], len(page["rows"])) == (111, 5)
        page = catalogue.page((), "D99", "name", 0, 1000)
        assert page["total"] == 11
        assert catalogue.page((), "d", "rate", 990, 100)["rows"][-1]["level"] == 0

    asyncio.run(scenario())


def test_payloads_have_readable_forms() -> None:
    assert payload_form("grün".encode(), 100) == {"bytes": 5, "text": "grün"}
    assert payload_form("grün".encode(), 3) == {"bytes": 5, "text": "gr", "cut": True}
    assert payload_form(b"\xff\x00a", 2) == {"bytes": 3, "hex": "ff 00", "cut": True}
    assert payload_detail(b'{"a":1}', "json")["text"] == '{\n  "a": 1\n}'
    assert payload_detail(b"no", "json")["problem"] == "This is not JSON."
    assert payload_detail(b"[" * 200_000, "json")["problem"] == "This is not JSON."
    big = payload_detail(json.dumps(["x"] * 1_000_000).encode(), "json")
    assert big["cut"]
    assert len(big["text"]) == DETAIL_BYTES
    assert payload_detail(b"Hi", "hex")["hex"] == "48 69"


def test_wrong_secrets_make_the_next_attempt_wait() -> None:
    limiter = LoginLimiter()
    keys = ("name anna", "address ::1")
    for _ in range(FREE_FAILURES - 1):
        limiter.add_failure(keys, 0.0)
    assert limiter.wait_s(keys, 0.0) == 0.0
    limiter.add_failure(keys, 0.0)
    assert limiter.wait_s(("name anna", "address ::2"), 1.0) == 4.0
    for _ in range(2000):
        limiter.add_failure(keys, 0.0)
    assert limiter.wait_s(keys, 0.0) == MAX_WAIT_S
    limiter.add_success(keys)
    assert limiter.wait_s(keys, 0.0) == 0.0
    for number in range(20_000):
        limiter.add_failure((f"name {number}",), 0.0)
    assert len(limiter._failures) <= 10_000


def test_logins_expire_and_share_links() -> None:
    sessions = LoginSessions(b"key")
    link = BrokerLink("localhost", "anna", b"secret")
    assert sessions.add("first", link, 0.0) == []
    assert sessions.add("second", link, 1.0) == []
    assert sessions.find("first", 2.0) is link
    assert sessions.find("third", 2.0) is None
    assert sessions.remove("second") is None  # the other browser uses it
    assert sessions.expire(3.0 + IDLE_S) == [link]
    assert sessions.find("first", 4.0) is None
    assert sessions.is_token("a", sessions.token("a"))
    assert not sessions.is_token("b", sessions.token("a"))
    assert not sessions.is_token("a", "\ud800")


class _Client:
    """Answers as a client of a broker with many clients."""

    def __init__(self) -> None:
        self.calls = 0
        self.found = [
            ClientInfo(name=f"device-{n:04}", address=f"192.0.2.1:{n}", messages_in=n, subscriptions=[["a/#"]] * 5)
            for n in range(5000)
        ]

    async def clients(self, **_: Any) -> list[ClientInfo]:
        self.calls += 1
        return self.found

    async def cursors(self, **_: Any) -> list[CursorInfo]:
        return [
            CursorInfo(client="device-0003", filters=["a/#"], lag=5),
            CursorInfo(client="device-0005", filters=["a/#"], lag=2_000, idle=True),
            CursorInfo(client="device-0007", filters=["a/#"], lag=3),
            CursorInfo(client="device-0007", filters=["b/#"], lag=900),
        ]


class _Browser:
    def __init__(self) -> None:
        self.link = self
        self.client = _Client()
        self._found: dict[str, Any] = {}

    async def cached(self, name: str, read: Any) -> Any:
        if name not in self._found:
            self._found[name] = await read()
        return self._found[name]


def test_lists_are_read_once_for_several_requests() -> None:
    async def scenario() -> None:
        unused: Any = None
        browser = BrowserConnection(unused, unused, lake=None)
        reads = 0

        async def read() -> int:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0)
            if reads == 2:
                raise GodwitError("the broker is away")
            return reads

        first, second = await asyncio.gather(browser.cached("a", read), browser.cached("a", read))
        assert (first, second) == (1, 1)
        assert await browser.cached("a", read) == 1
        browser.forget("a")
        with pytest.raises(GodwitError, match="away"):
            await browser.cached("a", read)
        assert await browser.cached("a", read) == 3  # an error is not remembered
        for number in range(3 * MAX_CACHED):
            await browser.cached(f"quarantine {number}", read)
        assert len(browser._cache) == MAX_CACHED

    asyncio.run(scenario())


def test_thousands_of_clients_come_in_pages() -> None:
    async def scenario() -> None:
        browser: Any = _Browser()
        began = time.monotonic()
        for offset in range(0, 5000, 500):
            page = await pages.clients(browser, pages.ClientsQuery(sort="in", offset=offset, limit=1000))
            assert len(page["rows"]) == 200
            assert (page["total"], page["clients"], page["online"]) == (5000, 5000, 5000)
        print(f"{(time.monotonic() - began) / 10 * 1000:.1f} ms for a page of 5,000 clients")
        assert page["rows"][0]["name"] == "device-0499"
        assert page["rows"][0]["subscription_count"] == 5
        assert browser.client.calls == 1
        found = await pages.clients(browser, pages.ClientsQuery(search="E-499"))
        assert found["total"] == 10
        found = await pages.clients(browser, pages.ClientsQuery(sort="lag", limit=3))
        assert [(row["name"], row["lag"]) for row in found["rows"]] == [
            ("device-0007", 900), ("device-0003", 5), ("device-0000", 0),
        ]  # fmt: skip

    asyncio.run(scenario())
