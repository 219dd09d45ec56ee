"""Draw the flow diagrams of docs/PROTOCOL.md: real endpoints, clients and a broker, on a line in virtual time.

python docs/figures/flows.py

The line takes 5 ms each way and loses the datagrams that a figure names. Packets are recorded where they are sent, so
lost ones are shown too, and drawn by godwit.capture.flow, as `godwit flow` does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final

from godwit.broker.settings import Settings
from godwit.capture.conversation import read_reports
from godwit.capture.flow import as_svg, make_diagram
from godwit.capture.pcapng import CapturedDatagram
from godwit.client.config import ClientConfig
from godwit.client.events import Leased
from godwit.client.protocol import ClientProtocol
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server, endpoint_config
from godwit.store.memory import MemoryStore
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Address, Connected, Train
from godwit.wire.jobs import JobSpec

FOLDER: Final = Path(__file__).parent
DELAY_S: Final = 0.005
BEGAN_NS: Final = 1_763_200_000_000_000_000
BROKER: Final = ("198.51.100.1", 50000)
CLIENTS: Final = (("192.0.2.7", 40001), ("192.0.2.8", 40002))
RECORD: Final = b"\xa1\x64kind\x64ping"


class Line:
    """Nodes by address, and the datagrams between them in virtual time."""

    def __init__(self, lost: Iterable[int] = ()) -> None:
        self.now = 0.0
        self.datagrams: list[CapturedDatagram] = []
        self.nodes: dict[Address, tuple[Any, Callable[[list[Any]], None]]] = {}
        self._lost = set(lost)
        """By their place among the datagrams that clients send after the handshake, from 1."""
        self._after_handshake = 0
        self._heap: list[tuple[float, int, Address, Train]] = []
        self._count = 0

    def add(self, address: Address, node: Any, on_events: Callable[[list[Any]], None] = lambda events: None) -> None:
        """Add a node with the contract of an endpoint."""
        self.nodes[address] = (node, on_events)

    def run(self, until_s: float) -> None:
        """Run the line until this time."""
        while self.now <= until_s:
            for address, (node, on_events) in self.nodes.items():
                self._drain(address, node, on_events)
            timers = [at for node, _ in self.nodes.values() if (at := node.next_timer()) is not None]
            next_at = min([*timers, *(item[0] for item in self._heap[:1])], default=until_s + 1)
            if next_at > until_s:
                self.now = until_s
                return
            self.now = max(self.now + 1e-6, next_at)
            while self._heap and self._heap[0][0] <= self.now:
                _, _, destination, train = heapq.heappop(self._heap)
                self.nodes[destination][0].receive(train, self.now)
            for node, _ in self.nodes.values():
                if (at := node.next_timer()) is not None and at <= self.now:
                    node.handle_timers(self.now)

    def _drain(self, address: Address, node: Any, on_events: Callable[[list[Any]], None]) -> None:
        for _ in range(10):
            on_events(node.events())
            trains = []
            while (train := node.next_train(self.now)) is not None:
                trains.append(train)
            for train in trains:
                for datagram in train.datagrams():
                    self._send(address, train.address, datagram)
            if not trains:
                return

    def _send(self, source: Address, destination: Address, datagram: bytes) -> None:
        time_ns = BEGAN_NS + round(self.now * 1e9) + len(self.datagrams)
        self.datagrams.append(
            CapturedDatagram(time_ns, (source[0], source[1]), (destination[0], destination[1]), datagram)
        )
        is_counted = source != BROKER and datagram[13] not in (0x02, 0x04)
        self._after_handshake += is_counted
        if is_counted and self._after_handshake in self._lost:
            return
        self._count += 1
        train = Train(source, datagram, len(datagram))
        heapq.heappush(self._heap, (self.now + DELAY_S, self._count, destination, train))


def transfer(records: int, *, lost: Iterable[int] = (), until_s: float = 0.2, **options: Any) -> Line:
    """Return the line after a client has sent this many records on a channel."""
    line = Line(lost)
    entropy = Random(7).randbytes
    server = Endpoint(EndpointConfig(accepts=True), entropy=entropy)
    client = Endpoint(EndpointConfig(**options), entropy=entropy)
    connection = client.connect(BROKER, 0.0)

    def on_events(events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Connected):
                for _ in range(records):
                    connection.send(0, RECORD * 80)

    line.add(BROKER, server)
    line.add(CLIENTS[0], client, on_events)
    line.run(until_s)
    return line


def job() -> Line:
    """Return the line after a controller has submitted a job and a worker has done it."""
    line = Line()
    entropy = Random(7).randbytes
    log = MemoryLog(MemoryStore(1 << 20, log_id=bytes(16)))
    server = Server(Settings(sys_interval_s=3600), log, entropy=entropy, now=0.0, epoch_us=BEGAN_NS // 1000)
    line.add(BROKER, server.listen(endpoint_config(Settings(), receive_buffer_bytes=1 << 18)))
    controller, worker = (
        ClientProtocol(ClientConfig(name=name), entropy=entropy, random=Random(1)) for name in ("controller", "worker")
    )

    def on_work(events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Leased):
                worker.finish(event.lease, b"small.png")

    worker.connect([BROKER], 0.0)
    worker.volunteer(["resize"], 1)
    line.add(CLIENTS[1], worker, on_work)
    line.run(0.1)
    controller.connect([BROKER], line.now)
    controller.submit(JobSpec(key="1", of_kind="resize"), b"large.png")
    line.add(CLIENTS[0], controller)
    line.run(0.3)
    return line


def drawing(line: Line, first: int = 0) -> str:
    """Return the packets of the line, without some at the beginning, as SVG."""
    reports = read_reports(line.datagrams)[first:]
    return as_svg(make_diagram(reports, len(reports)))


def figures() -> dict[str, str]:
    """Return all figures by the names of their files."""
    after_handshake = 4
    return {
        "flow-handshake.svg": drawing(transfer(1, until_s=0.05)),
        "flow-retransmit.svg": drawing(transfer(3, lost=[2]), after_handshake),
        "flow-selective-repeat.svg": drawing(transfer(8, lost=[4]), after_handshake),
        "flow-go-back-n.svg": drawing(transfer(8, lost=[4], arq="go-back-n", arq_window=4), after_handshake),
        "flow-stop-and-wait.svg": drawing(transfer(4, lost=[3], arq="stop-and-wait"), after_handshake),
        "flow-job.svg": drawing(job()),
    }


if __name__ == "__main__":
    for name, content in figures().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
