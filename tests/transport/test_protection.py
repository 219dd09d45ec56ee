"""Packet protection: against an independent implementation, bit by bit, and over whole connections."""

from __future__ import annotations

import hashlib
import hmac
import random
from typing import Any, ClassVar

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from hypothesis import given
from hypothesis import strategies as st
from tests.transport.sealed import CLIENT, SERVER, SealedWorld, protection_of
from tests.transport.world import STRANGER, Flying, examples, send_all

from godwit.limits import KEY_LIFETIME_S
from godwit.net.tls import AES_128_GCM, CHACHA20_POLY1305
from godwit.transport import protection as module
from godwit.transport.connection import Connection
from godwit.transport.events import Closed, ConnectionState, PathChanged, Train
from godwit.transport.protection import DirectionKey, Suite, expand, is_sealed
from godwit.wire import packet as wire
from godwit.wire.packet import HEADER, encode_packet
from godwit_sim.sealing import CLEAR

REAL = (AES_128_GCM, CHACHA20_POLY1305)
SECRET = bytes(range(32))


# -- an independent implementation: AES-GCM from AES in ECB mode and GHASH, HKDF from HMAC -----------------------------


def aes_block(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def multiply(x: int, y: int) -> int:
    """In GF(2^128), NIST SP 800-38D, 6.3."""
    z = 0
    for place in range(127, -1, -1):
        if x >> place & 1:
            z ^= y
        y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    return z


def gcm(key: bytes, nonce: bytes, data: bytes, associated: bytes) -> bytes:
    """AES-GCM by NIST SP 800-38D, 7.1, for nonces of 96 bits."""
    h = int.from_bytes(aes_block(key, bytes(16)), "big")
    counter = int.from_bytes(nonce + b"\0\0\0\1", "big")
    output = b""
    for start in range(0, len(data), 16):
        stream = aes_block(key, (counter + 1 + start // 16).to_bytes(16, "big"))
        output += bytes(a ^ b for a, b in zip(data[start : start + 16], stream, strict=False))
    y = 0
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(output)).to_bytes(8, "big")
    padded = associated + bytes(-len(associated) % 16) + output + bytes(-len(output) % 16) + lengths
    for start in range(0, len(padded), 16):
        y = multiply(y ^ int.from_bytes(padded[start : start + 16], "big"), h)
    tag = y ^ int.from_bytes(aes_block(key, counter.to_bytes(16, "big")), "big")
    return output + tag.to_bytes(16, "big")


def chacha_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """A block of RFC 8439, 2.3."""
    words = [int.from_bytes(part, "little") for part in (b"expa", b"nd 3", b"2-by", b"te k")]
    words += [int.from_bytes(key[at : at + 4], "little") for at in range(0, 32, 4)]
    words += [counter] + [int.from_bytes(nonce[at : at + 4], "little") for at in range(0, 12, 4)]
    state = words.copy()

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> 32 - bits) & 0xFFFFFFFF

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for left, right, target, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[left] = (state[left] + state[right]) & 0xFFFFFFFF
            state[target] = rotated(state[target] ^ state[left], bits)

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for column in range(4):
            quarter(column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12)
    return b"".join(((one + two) & 0xFFFFFFFF).to_bytes(4, "little") for one, two in zip(words, state, strict=True))


def chacha20_poly1305(key: bytes, nonce: bytes, data: bytes, associated: bytes) -> bytes:
    """RFC 8439, 2.8."""
    blocks = [chacha_block(key, 1 + at // 64, nonce) for at in range(0, len(data), 64)]
    sealed = bytes(one ^ two for one, two in zip(data, b"".join(blocks), strict=False))
    one_time = chacha_block(key, 0, nonce)
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    padded = b"".join(part + bytes(-len(part) % 16) for part in (associated, sealed))
    padded += len(associated).to_bytes(8, "little") + len(sealed).to_bytes(8, "little")
    total = 0
    for at in range(0, len(padded), 16):
        total = (total + int.from_bytes(padded[at : at + 16] + b"\x01", "little")) * r % (2**130 - 5)
    return sealed + ((total + int.from_bytes(one_time[16:32], "little")) % 2**128).to_bytes(16, "little")


def hkdf_expand(secret: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, 2.3, in full."""
    blocks = [b""]
    while 32 * (len(blocks) - 1) < length:
        blocks.append(hmac.new(secret, blocks[-1] + info + bytes([len(blocks)]), hashlib.sha256).digest())
    return b"".join(blocks)[:length]


def sealed_by_the_book(
    secret: bytes, connection_id: int, number: int, frames: bytes, updates: int = 0, suite: Suite = AES_128_GCM
) -> bytes:
    cipher, key_bytes = (gcm, 16) if suite is AES_128_GCM else (chacha20_poly1305, 32)
    for _ in range(updates):
        secret = hkdf_expand(secret, b"godwit 1 update", 32)
    key = hkdf_expand(secret, b"godwit 1 key", key_bytes)
    iv = int.from_bytes(hkdf_expand(secret, b"godwit 1 iv", 12), "big")
    header = bytes([0x11 | (updates % 2) << 1]) + connection_id.to_bytes(8, "big") + (number % 2**32).to_bytes(4, "big")
    return header + cipher(key, (iv ^ number).to_bytes(12, "big"), frames, header)


def test_the_book_agrees_with_published_vectors() -> None:
    """Test case 4 of the GCM specification, 2.8.2 of RFC 8439, A.1 of RFC 5869: the implementation above is right."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308")
    data = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
        "ba637b39"
    )
    associated = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    sealed = gcm(key, bytes.fromhex("cafebabefacedbaddecaf888"), data, associated)
    assert sealed.hex() == (
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d"
        "58e0915bc94fbc3221a5db94fae95ae7121a47"
    )
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would "
    )
    nonce, associated = bytes.fromhex("070000004041424344454647"), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = chacha20_poly1305(bytes(range(0x80, 0xA0)), nonce, text + b"be it.", associated)
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    secret = bytes.fromhex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
    assert hkdf_expand(secret, bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


@pytest.mark.parametrize("purpose", [b"key", b"iv", b"update"])
def test_keys_are_expanded_as_rfc_5869_says(purpose: bytes) -> None:
    for length in (12, 16, 32):
        ours = expand(SECRET, purpose, length)
        info = b"godwit 1 " + purpose
        assert ours == hkdf_expand(SECRET, info, length) == HKDFExpand(hashes.SHA256(), length, info).derive(SECRET)


class Half:
    """One side with fixed secrets, without a connection."""

    def __init__(self, suite: Suite = AES_128_GCM, role: Any = "client") -> None:
        self.world = SealedWorld(suites=(suite,))
        client, server = self.world.connect()
        self.world.run(0.5)
        connection = client if role == "client" else server
        self.components = connection._components
        self.protection = module.PacketProtection(suite, role, SECRET, SECRET[::-1], self.components, self.world.now)


@given(st.sampled_from(REAL), st.binary(min_size=1, max_size=200), st.integers(0, 2**63))
@examples(0.3)
def test_sealed_packets_are_those_of_the_book(suite: Suite, frames: bytes, number: int) -> None:
    key = DirectionKey(suite, SECRET)
    header = HEADER.pack(0x11, 77, number & 0xFFFFFFFF)
    sealed = header + key.encrypt(key.nonces(number, 1)[0], frames, header)
    assert sealed == sealed_by_the_book(SECRET, 77, number, frames, suite=suite)


@pytest.mark.parametrize("suite", REAL, ids=lambda suite: suite.name)
@pytest.mark.parametrize("number", [0, 2**32 - 3, 2**40 - 3, 2**52], ids=["0", "2^32", "2^40", "2^52"])
def test_runs_are_those_of_the_book(suite: Suite, number: int) -> None:
    """Many packets in one call, also where the 32 bits of the header start again."""
    half = Half(suite)
    half.protection._update_at = 2**60
    contents = [bytes([n]) * 100 for n in range(6)]
    parts = half.protection.seal_run(contents, number)
    peer_id, own_id = half.components.peer_id, half.components.connection_id
    book = [sealed_by_the_book(SECRET, peer_id, number + n, one, suite=suite) for n, one in enumerate(contents)]
    assert b"".join(parts) == b"".join(book)
    size = len(book[0])
    theirs = [sealed_by_the_book(SECRET[::-1], own_id, number + n, one, suite=suite) for n, one in enumerate(contents)]
    train = b"front" + b"".join(theirs)
    assert half.protection.open_run(train, 5, size, number) == contents
    assert half.protection.open_run(train[:-1], 5, size, number) == contents[:-1], "the last one is not whole"
    assert half.protection.open_run(train, 5 + size, size, number + 1) == contents[1:]
    assert not half.protection.open_run(train, 5, size, number + 1), "not the next one"
    for place in (0, 3, 8, 9, 12, 13, 60, size - 1):  # the first byte, id, number, frames, tag
        for bit in range(8):
            damaged = bytearray(train)
            damaged[5 + 2 * size + place] ^= 1 << bit
            assert half.protection.open_run(bytes(damaged), 5, size, number) == contents[:2], (place, bit)
    assert half.protection.forged == 0, "`open` decides about the packet that ended the run, and counts it"
    assert half.protection.open(bytes(damaged[5 + 2 * size : 5 + 3 * size]), number + 2, half.world.now) is None
    assert half.protection.forged == 1


def test_seal_and_open_agree_with_the_book_through_key_updates() -> None:
    half = Half()
    peer_id = half.components.peer_id
    protection = half.protection
    for number in range(6):
        assert protection.seal_frames(b"\x01", number) == sealed_by_the_book(SECRET, peer_id, number, b"\x01", number)
        half.components.recovery.largest_acked = number
        protection._update_at = number + 1
    own_id = half.components.connection_id
    for number in range(6):
        packet = sealed_by_the_book(SECRET[::-1], own_id, number, b"\x01", number)
        opened = protection.open(packet, number, half.world.now)
        assert opened is not None
        assert opened[HEADER.size : -4] == b"\x01"
        half.components.acknowledger.largest_reported = number
    assert protection.updates == (6 - 1, 6 - 1)


def test_a_vector_for_the_protocol_document() -> None:
    """The bytes in docs/PROTOCOL.md."""
    packet = sealed_by_the_book(SECRET, 0x0102030405060708, 7, b"\x01")
    assert packet.hex() == VECTOR


VECTOR = "11010203040506070800000007fd62b12a5ee15e613d4951bccc6769ecd1"


@pytest.mark.parametrize("suite", REAL, ids=lambda suite: suite.name)
def test_each_flipped_bit_makes_a_packet_not_open(suite: Suite) -> None:
    half = Half(suite, "server")
    key = DirectionKey(suite, SECRET)
    header = HEADER.pack(0x11, half.components.connection_id, 5)
    packet = header + key.encrypt(key.nonces(5, 1)[0], b"\x01\x00\x00", header)
    assert half.protection.open(packet, 5, half.world.now) is not None
    before = half.protection.updates
    for place in range(8 * len(packet)):
        changed = bytearray(packet)
        changed[place // 8] ^= 1 << place % 8
        assert half.protection.open(bytes(changed), 5, half.world.now) is None, f"bit {place}"
    for size in range(len(packet)):
        assert half.protection.open(packet[:size], 5, half.world.now) is None or size == len(packet)
    assert half.protection.updates == before


@given(st.binary(max_size=120))
@examples(2)
def test_any_bytes_are_dropped_and_counted(data: bytes) -> None:
    world, connection = _shared()
    before = connection.statistics.packets_received, world.server.endpoint.dropped.total()
    head = b"\x11" + connection.id.to_bytes(8, "big")
    for packet in (data, head + data, b"\x13" + head[1:] + data):
        world.inject(world.server, packet, source=CLIENT)
        world.inject(world.server, packet, source=STRANGER)
    assert connection.state is ConnectionState.OPEN
    assert connection.statistics.packets_received == before[0]
    assert world.server.endpoint.dropped.total() >= before[1] + (2 if data else 0)


_open: list[tuple[SealedWorld, Connection]] = []


def _shared() -> tuple[SealedWorld, Connection]:
    if not _open:
        world = SealedWorld(suites=REAL)
        _, server = world.connect()
        world.run(0.5)
        _open.append((world, server))
    return _open[0]


@pytest.mark.parametrize("suite", REAL, ids=lambda suite: suite.name)
def test_real_ciphers_carry_records_under_loss(suite: Suite) -> None:
    world = SealedWorld(3, suites=(suite,), loss=0.05)
    client, server = world.connect()
    bodies = [bytes([n]) * (1 + 997 * n) for n in range(30)]
    send_all(world, client, bodies)
    send_all(world, server, bodies)
    world.run_until(lambda: len(world.server.bodies()) == 30 and len(world.client.bodies()) == 30)
    assert world.server.bodies() == world.client.bodies() == bodies
    capture = b"".join(flying.data for flying in world.log)
    assert bodies[20][:64] not in capture


def test_a_number_is_never_sealed_twice() -> None:
    half = Half()
    half.protection.seal_frames(b"\x01", 5)
    with pytest.raises(AssertionError, match="sealed before"):
        half.protection.seal_frames(b"\x02", 5)


class Spy:
    """An AEAD that notes each (key, nonce) and refuses the second use."""

    used: ClassVar[set[tuple[bytes, bytes]]] = set()

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._inner = CLEAR.make(key)
        self.decrypt = self._inner.decrypt

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes) -> bytes:
        assert (self._key, nonce) not in self.used, "a nonce was used twice"
        self.used.add((self._key, nonce))
        sealed: bytes = self._inner.encrypt(nonce, data, associated_data)
        return sealed


def test_no_nonce_repeats_over_loss_moves_closes_probes_and_key_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_PACKETS", 40)
    spied = Suite(98, "spy", key_bytes=32, max_forged=2**36, make=Spy, error=CLEAR.error)
    for seed in range(10):
        Spy.used.clear()
        world = SealedWorld(seed, suites=(spied,), loss=0.1, mtu_bytes=1400)
        client, server = world.connect()
        bodies = [bytes(1 + 1500 * n) for n in range(30)]
        send_all(world, client, bodies)
        send_all(world, server, bodies[:10])
        for number in range(4):
            move_client(world, ("192.0.2.1", 5001 + number))
            world.run(1.0)
        world.run_until(lambda world=world: len(world.server.bodies()) == 30)  # type: ignore[misc]
        protection = protection_of(client)  # the connection drops it when it is removed
        client.close(world.now)
        world.run(5.0)
        assert len(Spy.used) > 300, f"seed {seed}"
        assert protection.updates[0] > 2, f"seed {seed}"


def move_client(world: SealedWorld, address: tuple[str, int]) -> None:
    world.routes.pop(world.client.address)
    world.client.address = address
    world.routes[address] = world.client


# -- key updates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
def test_both_sides_update_their_keys_all_the_time(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    monkeypatch.setattr(module, "KEY_PACKETS", 8)
    for seed in range(5):
        world = SealedWorld(seed, loss=loss)
        rng = random.Random(seed)
        usual = world.fate
        world.fate = lambda flying, usual=usual, rng=rng: [delay + rng.random() * 0.02 for delay in usual(flying)]  # type: ignore[misc]
        client, server = world.connect()
        bodies = [bytes([n]) * 2500 for n in range(60)]
        send_all(world, client, bodies)
        send_all(world, server, bodies)
        world.run_until(lambda world=world: len(world.server.bodies()) == 60 and len(world.client.bodies()) == 60)  # type: ignore[misc]
        ours, theirs = protection_of(client).updates
        assert ours >= 3, f"seed {seed}"
        assert theirs >= 3, f"seed {seed}"
        dropped = world.server.endpoint.dropped + world.client.endpoint.dropped
        assert dropped["forged"] == dropped["early_key_update"] == 0, f"seed {seed}: {dropped}"


def test_keys_are_replaced_after_an_hour_of_little_traffic() -> None:
    world = SealedWorld()
    client, server = world.connect()
    world.run(KEY_LIFETIME_S + 60.0)
    assert protection_of(client).updates == protection_of(server).updates == (1, 1)
    assert client.state is ConnectionState.OPEN


def test_a_side_that_only_acknowledges_asks_before_it_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_PACKETS", 30)
    world = SealedWorld()
    client, server = world.connect()
    world.run(0.5)
    send_all(world, server, [bytes(1000)] * 3000)
    world.run_until(lambda: len(world.client.bodies()) == 3000)
    assert protection_of(client).updates[0] >= 1


def test_an_update_before_the_last_one_was_acknowledged_is_dropped() -> None:
    half = Half(role="server")
    protection = half.protection
    own_id = half.components.connection_id
    now = half.world.now
    half.components.acknowledger.largest_reported = 3
    assert protection.open(sealed_by_the_book(SECRET, own_id, 4, b"\x01", 1), 4, now) is not None
    assert protection.open(sealed_by_the_book(SECRET, own_id, 5, b"\x01", 2), 5, now) is None
    assert half.components.dropped["early_key_update"] == 1
    assert protection.updates == (0, 1)
    half.components.acknowledger.largest_reported = 4
    assert protection.open(sealed_by_the_book(SECRET, own_id, 5, b"\x01", 2), 5, now) is not None


def test_a_late_packet_of_the_former_key_opens_for_a_while() -> None:
    half = Half(role="server")
    protection = half.protection
    own_id = half.components.connection_id
    now = half.world.now
    half.components.acknowledger.largest_reported = 3
    late = sealed_by_the_book(SECRET, own_id, 2, b"\x01")
    assert protection.open(sealed_by_the_book(SECRET, own_id, 4, b"\x01", 1), 4, now) is not None
    assert protection.open(late, 5, now) is not None
    assert protection.open(late, 5, now + 100.0) is None
    assert half.components.dropped["old_key"] == 1


def test_a_key_that_cannot_be_replaced_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEY_PACKETS", 4096 + 20)
    world = SealedWorld()
    client, _ = world.connect()
    world.run(0.5)
    send_all(world, client, [bytes(1000)] * 100)
    world.run(2.0)
    closed = world.closed(world.client)
    assert closed.code == 9
    assert "cannot be replaced" in closed.reason


# -- replays, moves, closes -------------------------------------------------------------------------------------------


def test_a_replayed_session_does_nothing() -> None:
    world = SealedWorld(suites=REAL)
    client, server = world.connect()
    send_all(world, client, [b"once"] * 20)
    world.run(1.0)
    recorded = [flying.data for flying in world.sealed_packets(CLIENT)]
    before = len(world.server.records), server.statistics.packets_received
    for packet in recorded:
        world.inject(world.server, packet, source=CLIENT)
        world.inject(world.server, packet, source=STRANGER)
    world.run(1.0)
    assert len(world.server.records) == before[0]
    assert not world.server.all(PathChanged)
    assert server.peer_address == CLIENT
    assert not [flying for flying in world.log if flying.target == STRANGER], "no challenge for a replay"


def test_a_client_that_moves_keeps_its_sealed_connection() -> None:
    world = SealedWorld(suites=REAL)
    client, server = world.connect()
    world.run(1.0)
    move_client(world, ("192.0.2.77", 4321))
    send_all(world, client, [b"from elsewhere"])
    world.run(3.0)
    assert server.peer_address == ("192.0.2.77", 4321)
    assert world.server.bodies() == [b"from elsewhere"]


def test_a_sealed_close_ends_the_other_side() -> None:
    world = SealedWorld(suites=REAL)
    client, server = world.connect()
    client.close(world.now, 3, "that is all")
    world.run(1.0)
    closed = world.closed(world.server)
    assert (closed.code, closed.reason, closed.origin) == (3, "that is all", "peer")
    assert server.state is not ConnectionState.OPEN


def test_forged_closes_and_packets_do_not_end_a_closing_connection_or_get_answers() -> None:
    world = SealedWorld()
    client, _ = world.connect()
    world.run(0.5)
    world.fate = lambda flying: []
    client.close(world.now)
    world.drain()
    sent = len(world.log)
    for _ in range(20):
        world.inject(world.client, encode_packet(client.id, 50, b"\x01"), source=SERVER)
        world.inject(world.client, b"\x11" + client.id.to_bytes(8, "big") + bytes(40), source=SERVER)
    world.drain()
    assert len(world.log) == sent


def test_a_train_of_several_connections_and_damaged_packets_is_handled() -> None:
    """Packets that open are handled, with any other packets between them."""
    world = SealedWorld(suites=REAL)
    client, server = world.connect()
    world.run(0.5)
    held: list[Flying] = []

    def fate(flying: Flying) -> list[float]:
        if flying.source == CLIENT and is_sealed(flying.data):
            held.append(flying)
            return []
        return [0.01]

    world.fate = fate
    send_all(world, client, [bytes([n]) * 900 for n in range(10)])
    world.drain()
    assert held
    size = len(held[0].data)
    packets = [flying.data for flying in held if len(flying.data) == size]
    packets.insert(1, bytes([packets[0][0]]) + packets[0][1:-1] + bytes([packets[0][-1] ^ 1]))
    packets.insert(2, encode_packet(server.id, 3, b"\x01".ljust(size - 17, b"\0")))
    packets.append(bytes(size))
    world.server.endpoint.receive(Train(CLIENT, b"".join(packets), size), world.now)
    world.server.note_events()
    assert world.server.endpoint.dropped["forged"] == 1
    assert world.server.endpoint.dropped["unsealed"] == 1
    world.fate = world.usual_fate
    world.run(3.0)
    assert world.server.bodies() == [bytes([n]) * 900 for n in range(10)]
    assert not world.server.all(Closed)


def test_a_dropped_packet_in_a_train_does_not_shift_the_numbers_of_the_following() -> None:
    """A peer seals a packet with frames that do not exist between the fragments of a record."""
    world = SealedWorld(suites=REAL)
    client, server = world.connect()
    world.run(0.5)
    body = bytes(range(250)) * 24
    size = 1000
    channel = client.open_channel()
    contents = []
    for at in range(0, len(body), size):
        kind = wire.DATA | wire.LAST if at + size >= len(body) else wire.DATA
        contents.append(wire.FRAGMENT_HEADER.pack(kind, channel, 0, at) + body[at : at + size])
    contents.insert(3, b"\x3f" * len(contents[0]))
    number = protection_of(client)._next_number
    train = b"".join(protection_of(client).seal_run(contents, number))
    world.server.endpoint.receive(Train(CLIENT, train, len(train) // len(contents)), world.now)
    world.server.note_events()
    assert world.server.bodies() == [body]
    acknowledger = server._components.acknowledger
    assert acknowledger.largest == number + len(contents) - 1
    frame = acknowledger.next_frame(world.now, None)
    assert frame.ranges == ((number + 4, number + len(contents) - 1), (0, number + 2))


def test_too_many_forged_packets_end_a_connection() -> None:
    """The limit of RFC 9001, 6.6."""
    few = Suite(AES_128_GCM.code, "few", key_bytes=16, max_forged=100, make=AES_128_GCM.make, error=AES_128_GCM.error)
    world = SealedWorld(suites=(few,))
    client, server = world.connect()
    world.run(0.5)
    forged = b"\x11" + server.id.to_bytes(8, "big") + bytes(40)
    world.inject(world.server, *[forged] * 99, source=CLIENT)
    world.run(0.5)
    assert server.state is ConnectionState.OPEN
    world.inject(world.server, forged, source=CLIENT)
    client.ping()
    world.run(1.0)
    closed = world.closed(world.server)
    assert (closed.code, closed.reason) == (9, "too many forged packets")


def test_header_flags_are_checked() -> None:
    for first in range(256):
        packet = bytes([first]) + bytes(40)
        assert is_sealed(packet) is (first in (0x11, 0x13))
    assert wire.FLAG_SEALED | wire.FLAG_PHASE == 3
