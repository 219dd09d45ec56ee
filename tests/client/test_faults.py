"""The promise of QoS 1 and 2 under faults: connections break at any moment, brokers restart, the network loses trains.

At every confirm, everything below it has reached the broker; at the end everything has, in order, and at QoS 2 the
repeats are such that the broker can recognise each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.world import FakeBroker, Network, User
from tests.transport.world import examples

from godwit.client.config import ClientConfig
from godwit.client.events import Confirmed, Ended, Refused
from godwit.client.publisher import Publisher
from godwit.errors import BufferFullError
from godwit.transport.events import Address, ConnectionState
from godwit.wire.batch import Batch
from godwit.wire.control_base import Code, Qos

TOPICS: list[tuple[str, Qos]] = [("one", 1), ("two", 2), ("three", 1)]
FAULTS = ["restart", "partition", "close", "lossy", "silent", "reset"]


class Model:
    """A client with some publishers, a broker, faults, and the books."""

    def __init__(self, seed: int) -> None:
        self.network = Network(seed)
        self.rng = self.network.rng
        self.broker = FakeBroker(self.network)
        self.user = User(self.network, ClientConfig(send_buffer_bytes=60_000))
        self.publishers = [self.user.client.publisher(topic, qos=qos) for topic, qos in TOPICS]
        self.sent: dict[str, list[bytes]] = {topic: [] for topic, _ in TOPICS}
        self.loss = 0.0
        self.partition = False
        self.network.lost = self._is_lost
        self.network.after_step.append(self.check_confirms)

    def _is_lost(self, _source: Address, _target: Address) -> bool:
        return self.partition or self.rng.random() < self.loss

    # -- steps --------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        publisher = self.rng.choice(self.publishers)
        for _ in range(self.rng.choice([1, 1, 3, 40])):
            payload = b"%d " % len(self.sent[publisher.topic]) + bytes(self.rng.choice([0, 10, 100, 3000]))
            try:
                publisher.send(payload, self.network.now_us, self.rng.random() < 0.05)
            except BufferFullError:
                return
            self.sent[publisher.topic].append(payload)

    def fault(self, kind: str) -> None:
        broker = self.broker
        if kind == "restart":
            broker.stop()
            self.network.run(self.rng.uniform(0, 2))
            broker.start()
        elif kind == "partition":
            self.partition = True
            self.network.run(self.rng.choice([0.05, 1.0, 35.0]))
            self.partition = False
        elif kind == "close" and broker.links and broker.link.connection.state is ConnectionState.OPEN:
            broker.link.connection.close(self.network.now, self.rng.choice([Code.SHUTDOWN, Code.BUSY, Code.INTERNAL]))
        elif kind == "lossy":
            self.loss = self.rng.choice([0.0, 0.1, 0.4])
        elif kind == "silent":
            broker.confirms = not broker.confirms
        elif kind == "reset":
            broker.start()  # at once: the old connection is unknown

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_confirms(self) -> None:
        for publisher in self.publishers:
            got = set(self.broker.messages(publisher.topic))
            safe = self.sent[publisher.topic][: publisher.confirmed_sequence]
            assert got.issuperset(safe), f"seed {self.network.seed}: confirmed and not there"

    def finish(self) -> None:
        self.loss = 0.0
        self.broker.confirms = True
        if self.broker.links and self.broker.link.connection.state is ConnectionState.OPEN:
            # Pending messages can be confirmed by a new connection only.
            self.broker.link.connection.close(self.network.now, Code.SHUTDOWN)
        self.network.run_until(lambda: all(publisher.is_idle for publisher in self.publishers), 120.0)
        self.user.note()
        for publisher in self.publishers:
            self.check(publisher)
        assert self.user.client.held_bytes == 0
        assert self.user.all(Ended) == []
        assert self.user.all(Refused) == []

    def check(self, publisher: Publisher) -> None:
        sent = self.sent[publisher.topic]
        assert publisher.confirmed_sequence == publisher.next_sequence == len(sent)
        last = [event for event in self.user.all(Confirmed) if event.publisher is publisher]
        assert (last[-1].sequence if last else 0) == len(sent)
        assert without_repeats(self.broker.messages(publisher.topic)) == sent
        if publisher.qos == 2:
            batches = [batch for topic, _, batch in self.broker.stored if topic == publisher.topic]
            assert recognised(batches) == sent


def without_repeats(messages: Sequence[bytes]) -> list[bytes]:
    """Each message where it came first; they are all different."""
    return list(dict.fromkeys(messages))


def recognised(batches: Sequence[Batch]) -> list[bytes]:
    """What a broker keeps that knows the next sequence."""
    kept: list[bytes] = []
    by_sequence: dict[int, list[bytes]] = {}
    for batch in batches:
        assert batch.sequence is not None
        assert by_sequence.setdefault(batch.sequence, batch.payloads) == batch.payloads
        assert batch.sequence <= len(kept), "a batch was left out"
        kept += batch.payloads[len(kept) - batch.sequence :]
    return kept


def run_model(seed: int, steps: Sequence[str]) -> None:
    model = Model(seed)
    for step in steps:
        if step == "send":
            model.send()
        elif step == "wait":
            model.network.run(model.rng.choice([0.0, 0.001, 0.01, 0.3]))
        else:
            model.fault(step)
    model.finish()


@examples(0.5)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(["send"] * 6 + ["wait"] * 5 + FAULTS), max_size=60),
)
def test_confirmed_messages_exist_and_all_are_confirmed_in_the_end(seed: int, steps: list[str]) -> None:
    run_model(seed, steps)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300))
def test_long_runs(seed: int) -> None:
    rng = Network(seed).rng
    run_model(seed, rng.choices(["send"] * 12 + ["wait"] * 12 + FAULTS, k=400))
