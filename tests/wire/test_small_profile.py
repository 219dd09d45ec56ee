"""The small profile of docs/PROTOCOL.md suffices: a client written from section 25 alone, without a line of godwit's
code, logs in to a real broker and publishes over a network that loses, repeats and moves.
"""

from __future__ import annotations

import hmac
import random
import struct
from collections.abc import Callable
from functools import partial

import pytest
from tests.wire.test_packet import crc32c_bit_by_bit

from godwit.broker.access import Access, Rule
from godwit.broker.effects import Notice
from godwit.broker.settings import Settings
from godwit.server.memory_log import MemoryLog
from godwit.server.server import Server
from godwit.store.memory import MemoryStore
from godwit.transport.config import EndpointConfig
from godwit.transport.events import Address, Train

HELLO, COOKIE, CONNECT, ACCEPT, ACK_POSITION, CONFIRM, CREDIT, PATH_PROBE, PATH_RESPONSE, CLOSE = (
    0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x0E,
)  # fmt: skip
WHOLE_LAST_AND_POSITION = 0x4E
FIXED_BYTES = {0x01: 1, CONFIRM: 17, CREDIT: 13, 0x0B: 13, PATH_PROBE: 9, PATH_RESPONSE: 25}

# A constant in the device's program memory: the bytes of the CONNECT in the page's session.
PARAMETERS = bytes.fromhex(
    "aa636172716d73746f702d616e642d776169746a6172715f77696e646f7701726d61785f646174616772616d5f6279746573"
    "1904b074726563656976655f6275666665725f6279746573190960746368616e6e656c5f77696e646f775f62797465731909"
    "6077636f6e6e656374696f6e5f77696e646f775f6279746573190960706d61785f7265636f72645f62797465731904b06c6d"
    "61785f6368616e6e656c73046f69646c655f74696d656f75745f6d7319ea606b6170706c69636174696f6e40"
)
OPEN = bytes.fromhex("a2646b696e64646f70656e65746f7069636174")  # {"kind": "open", "topic": "t"}
# {"kind": "login", "request": 1, "name": "sensor-1", "instance": 16 bytes, "proof": 32 bytes}, up to the instance
LOGIN = bytes.fromhex("a5646b696e64656c6f67696e677265717565737401646e616d656873656e736f722d3168696e7374616e636550")
PROOF = bytes.fromhex("6570726f6f665820")  # "proof": 32 bytes
WELCOME = bytes.fromhex("646b696e646777656c636f6d65")  # behind the map's byte: "kind": "welcome"
REFUSED = bytes.fromhex("646b696e646772656675736564")  # "kind": "refused"
SECRET = b"correct horse battery staple"
NAME = b"sensor-1"


class SmallClient:
    """Stop-and-wait, one datagram, one message a batch."""

    def __init__(self, rng: random.Random) -> None:
        self.own_id = rng.randbytes(8)
        self.nonce = rng.randbytes(16)
        self.cookie = b""
        self.key = b""
        self.server_id = bytes(8)
        self.number = 0  # of the next packet
        self.instance = rng.randbytes(16)
        self.position = 0  # of the record being sent
        self.channel = 0
        self.records = [0, 0]  # the next one on channels 0 and 1
        self.acknowledged = True
        self.confirmed = 0
        self.body = b""
        self.expected = 0  # the next position from the server
        self.incoming = b""  # the record being put together
        self.is_welcome = self.is_refused = False
        self.sent_bytes = 0
        self.limit_bytes = 0

    # -- what goes out ------------------------------------------------------------------------------------------------

    def packet(self, frames: bytes) -> bytes:
        number = 0
        if self.key:
            number = self.number
            self.number += 1
        head = b"\x10" + self.server_id + struct.pack(">I", number) + frames
        return head + struct.pack("<I", crc32c_bit_by_bit(head))

    def repeat(self) -> bytes | None:
        """What its time-out sends: the present step of the handshake, or the record that is not acknowledged."""
        if self.key:
            return None if self.acknowledged else self.data()
        if self.cookie:
            length = struct.pack(">H", len(PARAMETERS))
            return self.packet(bytes([CONNECT]) + self.own_id + self.nonce + self.cookie + length + PARAMETERS)
        return self.packet((bytes([HELLO]) + self.own_id + self.nonce).ljust(1200 - 17, b"\0"))

    def login(self) -> bytes:
        binding = hmac.digest(self.key, b"godwit 1 login", "sha256")
        proof = hmac.digest(SECRET, b"godwit 1 client " + binding + NAME, "sha256")
        return self.send(0, LOGIN + self.instance + PROOF + proof)

    def may_send(self, body_bytes: int) -> bool:
        return self.sent_bytes + body_bytes + 128 <= self.limit_bytes

    def is_safe(self, record: int) -> bool:
        return self.acknowledged and self.confirmed == record

    def send(self, channel: int, body: bytes) -> bytes:
        self.channel = channel
        self.body = body
        self.acknowledged = False
        if channel:
            assert self.may_send(len(body))
            self.sent_bytes += len(body) + 128
        return self.data()

    def data(self) -> bytes:
        record = self.records[self.channel]
        head = struct.pack(">BIII", WHOLE_LAST_AND_POSITION, self.channel, record, self.position)
        return self.packet(head + self.body)

    def close(self) -> bytes:
        mac = hmac.digest(self.key, b"close" + b"c" + b"\0\0", "sha256")[:16]
        return self.packet(bytes([CLOSE]) + b"\0\0\0\0" + mac)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def receive(self, packet: bytes) -> bytes | None:
        """Gives the answer, if there is one."""
        if crc32c_bit_by_bit(packet) != 0x48674BC7 or packet[0] != 0x10 or packet[1:9] != self.own_id:
            return None
        frames = packet[13:-4]
        if not self.key:
            return self.handshake(frames)
        answer = b""
        elicits = False
        while frames and frames[0]:
            kind = frames[0]
            if kind == ACK_POSITION:
                size = 10 + 8 * frames[9]
                (next_position,) = struct.unpack_from(">I", frames, 5)
                if not self.acknowledged and next_position == self.position + 1:
                    self.acknowledged = True
                    self.position += 1
                    self.records[self.channel] += 1
            elif kind & 0xC0 == 0x40:
                size = self.take(frames)
                elicits = True
            elif kind not in FIXED_BYTES:
                break  # CLOSE or RESET, which this device ignores
            else:
                size = FIXED_BYTES[kind]
                elicits = True
                answer += self.frame(kind, frames[:size])
            frames = frames[size:]
        if elicits:
            number = packet[9:13]
            answer += struct.pack(">BIIB", ACK_POSITION, 0, self.expected, 1) + number + number
        return self.packet(answer) if answer else None

    def take(self, frames: bytes) -> int:
        """A data frame: appended to the record if it is the next one. Gives its size."""
        flags, at = frames[0], 9 if frames[0] & 0x02 else 13
        if not flags & 0x08:
            at += 2 if flags & 0x01 else 0  # unreliable: it subscribes to nothing, and has no use for it
            return at + struct.unpack_from(">H", frames, at - 2)[0] if flags & 0x01 else len(frames)
        (position,) = struct.unpack_from(">I", frames, at)
        at += 4
        end = len(frames)
        if flags & 0x01:
            end = at + 2 + struct.unpack_from(">H", frames, at)[0]
            at += 2
        if position == self.expected:
            self.expected += 1
            self.incoming += frames[at:end]
            if flags & 0x06:  # WHOLE or LAST
                self.is_welcome |= self.incoming[1:].startswith(WELCOME)
                self.is_refused |= self.incoming[1:].startswith(REFUSED)
                self.incoming = b""
        return end

    def handshake(self, frames: bytes) -> bytes | None:
        if frames[0] == COOKIE and frames[21:37] == self.nonce and not self.cookie:
            self.cookie = frames[1:21]
            return self.repeat()
        if frames[0] == ACCEPT and self.cookie:
            self.server_id = frames[1:9]
            self.key = hmac.digest(self.nonce + frames[9:25], b"godwit 1 connection key", "sha256")
            # A real device reads its windows from the CBOR behind; the test's server has this one.
            self.limit_bytes = WINDOW_BYTES
            return self.packet(b"\x01")
        return None

    def frame(self, kind: int, frame: bytes) -> bytes:
        if kind == CONFIRM:
            _, sequence, _ = struct.unpack(">IQI", frame[1:])
            self.confirmed = max(self.confirmed, sequence)
        elif kind == CREDIT:
            channel, limit = struct.unpack(">IQ", frame[1:])
            self.limit_bytes = max(self.limit_bytes, limit) if channel == 1 else self.limit_bytes
        elif kind == PATH_PROBE:
            mac = hmac.digest(self.key, b"path" + b"c" + frame[1:], "sha256")[:16]
            return bytes([PATH_RESPONSE]) + frame[1:] + mac
        return b""


WINDOW_BYTES = 2400
"""Of the server, for each channel: small, so that the device depends on credit."""


class Network:
    """Between the two, in steps of 50 ms. It loses and repeats."""

    def __init__(self, seed: int, loss: float) -> None:
        rng = random.Random(seed)
        self.rng = rng
        self.loss = loss
        self.now = 1000.0
        rule = Rule(clients=("sensor-1",), allow=frozenset({"publish"}), topics=("t",))
        access = Access(secrets={"sensor-1": SECRET}, rules=(rule,), allows_anonymous=False)
        self.store = MemoryStore(log_id=bytes(16))
        self.server = Server(
            Settings(access=access),
            MemoryLog(self.store),
            entropy=rng.randbytes,
            now=self.now,
            epoch_us=1_763_200_000_000_000,
        )
        # The connection's window is wide enough for all of the test, so that the channel's is the one to watch.
        config = EndpointConfig(
            accepts=True, channel_window_bytes=WINDOW_BYTES, connection_window_bytes=8 * WINDOW_BYTES
        )
        self.listener = self.server.listen(config)
        self.client = SmallClient(rng)
        self.address: Address = ("192.0.2.7", 40001)
        self.notices: list[Notice] = []

    def carry(self, packet: bytes | None) -> None:
        """From the device to the server."""
        if packet is None:
            return
        assert len(packet) <= 1200
        for _ in range(self.copies()):
            self.listener.receive(Train(self.address, packet, len(packet)), self.now)

    def copies(self) -> int:
        dice = self.rng.random()
        return 0 if dice < self.loss else 2 if dice > 0.95 else 1

    def step(self) -> None:
        self.now += 0.05
        if self.rng.random() < 0.2:
            self.carry(self.client.repeat())
        timer = self.listener.next_timer()
        if timer is not None and timer <= self.now:
            self.listener.handle_timers(self.now)
        self.notices += self.listener.events()
        while (train := self.listener.next_train(self.now)) is not None:
            for datagram in train.datagrams():
                if train.address == self.address:
                    for _ in range(self.copies()):
                        self.carry(self.client.receive(datagram))

    def until(self, happened: Callable[[], object]) -> None:
        for _ in range(2000):
            self.step()
            if happened():
                return
        pytest.fail("it does not happen")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_client_from_the_page_alone(seed: int, loss: float) -> None:
    network = Network(seed, loss)
    client = network.client
    network.until(lambda: client.key)
    network.carry(client.login())
    network.until(lambda: client.acknowledged and client.is_welcome)
    network.carry(client.send(1, OPEN))
    network.until(lambda: client.acknowledged)
    messages = [b"%d" % number * 100 for number in range(20)]
    for place, message in enumerate(messages, 1):
        network.until(partial(client.may_send, len(message) + 9))
        if place == 10:
            network.address = ("198.51.100.9", 50002)
        published_us = 1_763_200_000_000_000 + place
        network.carry(client.send(1, struct.pack(">BQ", 0x41, published_us) + message))
        network.until(partial(client.is_safe, place))
    assert not client.is_refused
    entries = [entry for _, entry in network.store.read(0, 100_000).entries]
    assert [entry.rest for entry in entries] == messages
    assert {(entry.topic, entry.publisher) for entry in entries} == {("t", "sensor-1")}
    (connection,) = network.listener.endpoint.connections.values()
    assert connection.peer_address == network.address
    for _ in range(30):
        network.carry(client.close())
    network.step()
    assert [notice.kind for notice in network.notices] == ["connected", "topic_created", "disconnected"]
    assert network.notices[-1].fields["expected"]


def test_a_device_with_another_secret_is_not_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(0, 0.0)
    client = network.client
    network.until(lambda: client.key)
    with monkeypatch.context() as patched:
        patched.setattr("tests.wire.test_small_profile.SECRET", b"another")
        login = client.login()
    network.carry(login)
    network.until(lambda: network.notices)
    assert [notice.kind for notice in network.notices] == ["refused"]
    assert not client.is_welcome
