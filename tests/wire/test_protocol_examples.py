"""docs/PROTOCOL.md is true: every example in it decodes to what it says and encodes to what it shows, and a real server
answers its session with its bytes.
"""

from __future__ import annotations

import hmac
from typing import Any, get_args

import cbor2
import pytest
from tests.wire.protocol_page import (
    DATA_FRAMES,
    ENCODERS,
    FLAGS,
    NUMBERS,
    VECTORS,
    to_batch,
    to_bytes,
    to_control,
    to_frame,
    to_parameters,
)

from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Connected, Received
from godwit.transport.train import Train
from godwit.wire import batch as batches
from godwit.wire import frames as f
from godwit.wire.batch import decode_batches
from godwit.wire.control import Code, ControlMessage, UnknownKind, decode_control
from godwit.wire.frames import Frame, decode_frames, encode_frame
from godwit.wire.packet import decode_packet, expand_number
from godwit.wire.parameters import decode_parameters

# -- derivations, as section 6 words them -----------------------------------------------------------------------------


def derive(kind: str, of: dict[str, Any]) -> bytes:
    """With nothing but hmac: an independent reading of the page."""
    role = {"client": b"c", "server": b"s"}.get(of.get("sender", ""), b"")
    match kind:
        case "cookie":
            time: bytes = of["time_s"].to_bytes(4, "big")
            address = repr(tuple(of["address"])).encode()
            content = b"cookie" + time + bytes.fromhex(of["connection_id"]) + bytes.fromhex(of["nonce"]) + address
            return time + hmac.digest(to_bytes(of["secret"]), content, "sha256")[:16]
        case "connection-key":
            key = b"".join(bytes.fromhex(of[name]) for name in ("client_nonce", "server_nonce"))
            return hmac.digest(key, b"godwit 1 connection key", "sha256")
        case "path-mac":
            content = b"path" + role + bytes.fromhex(of["challenge"])
            return hmac.digest(bytes.fromhex(of["key"]), content, "sha256")[:16]
        case "close-mac":
            content = b"close" + role + of["code"].to_bytes(2, "big") + of["reason"].encode()
            return hmac.digest(bytes.fromhex(of["key"]), content, "sha256")[:16]
        case "reset-token":
            content = b"reset" + bytes.fromhex(of["connection_id"])
            return hmac.digest(to_bytes(of["reset_key"]), content, "sha256")[:16]
    raise KeyError(kind)


def derive_with_the_code(kind: str, of: dict[str, Any]) -> bytes:
    connection_id = int(of.get("connection_id", "0"), 16)
    match kind:
        case "cookie":
            nonce = bytes.fromhex(of["nonce"])
            secret, address = to_bytes(of["secret"]), tuple(of["address"])
            cookie = handshake.make_cookie(secret, of["time_s"] + 0.9, address, connection_id, nonce)
            assert handshake.check_cookie(secret, of["time_s"] + 10, address, connection_id, nonce, cookie)
            return cookie
        case "connection-key":
            return handshake.connection_key(*(bytes.fromhex(of[n]) for n in ("client_nonce", "server_nonce")))
        case "path-mac":
            return handshake.path_mac(bytes.fromhex(of["key"]), of["sender"], bytes.fromhex(of["challenge"]))
        case "close-mac":
            return handshake.close_mac(bytes.fromhex(of["key"]), of["sender"], of["code"], of["reason"])
        case "reset-token":
            return handshake.reset_token(to_bytes(of["reset_key"]), connection_id)
    raise KeyError(kind)


DERIVATIONS = ("cookie", "connection-key", "path-mac", "close-mac", "reset-token")

# -- every example, both ways -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS)
def test_the_example_encodes_to_its_bytes_and_decodes_to_its_values(name: str) -> None:
    data, described = VECTORS[name]
    if "frame" in described:
        frame = to_frame(described)
        assert encode_frame(frame) == data
        assert decode_frames(data) == [frame]
        return
    ((kind, value),) = described.items()
    match kind:
        case "packet":
            connection_id, number, frames = decode_packet(data)
            assert f"{connection_id:016x}" == value["connection_id"]
            assert number == value["number"]
            assert decode_frames(frames) == [to_frame(one) for one in value["frames"]]
            assert len(data) == value["bytes"]
        case "record":
            assert decode_batches(data) == [to_batch(one) for one in value]
        case "control":
            assert cbor2.loads(data) == value
            assert decode_control(data) == to_control(value)
        case "parameters":
            assert decode_parameters(data) == to_parameters(value)
        case "unknown-kind":
            assert decode_control(data) == UnknownKind(**value)
            return
        case "ignores-unknown-fields":
            assert decode_control(data) == to_control(value)
            return
        case "checksum":
            pass
        case _ if kind in DERIVATIONS:
            assert derive(kind, value) == data
            assert derive_with_the_code(kind, value) == data
            return
        case _:
            pytest.fail(f"an example of an unknown kind: {kind}")
    assert ENCODERS[kind](value) == data


@pytest.mark.parametrize(("data", "described"), DATA_FRAMES)
def test_the_data_frames(data: bytes, described: dict[str, list[str]]) -> None:
    flags = sum(FLAGS[name] for name in described["flags"])
    frame = f.Data(flags, 3, 9, 0 if flags & f.WHOLE else 1160, 77 if flags & f.HAS_POSITION else None, b"abcd")
    assert encode_frame(frame) == data
    assert decode_frames(data) == [frame]


@pytest.mark.parametrize(("data", "described"), NUMBERS)
def test_the_numbers(data: bytes, described: dict[str, str]) -> None:
    number = int(described["number"], 16)
    assert expand_number(int.from_bytes(data, "big"), int(described["expected"], 16)) == number
    assert number.to_bytes(8, "big")[4:] == data


# -- nothing is missing -----------------------------------------------------------------------------------------------


def described_as(kind: str) -> list[Any]:
    return [described[kind] for _, described in VECTORS.values() if kind in described]


def test_every_frame_has_an_example() -> None:
    types = {data[0] for data, described in VECTORS.values() if "frame" in described}
    assert types == set(range(f.PING, f.RESET + 1))
    assert set(described_as("frame")) | {"Data"} == {kind.__name__ for kind in get_args(Frame)}


def test_every_data_frame_that_is_sent_has_an_example() -> None:
    sent = {
        shape | length | position
        for shape in (0, f.LAST, f.WHOLE | f.LAST, f.LAST | f.END, f.WHOLE | f.LAST | f.END)
        for length in (0, f.HAS_LENGTH)
        for position in (0, f.HAS_POSITION)
    } | {f.WHOLE | f.UNRELIABLE, f.WHOLE | f.UNRELIABLE | f.HAS_LENGTH, f.WHOLE}
    assert {data[0] & 0x3F for data, _ in DATA_FRAMES} == sent
    assert len(DATA_FRAMES) == len(sent)


def test_every_feature_of_batches_has_an_example() -> None:
    records = [data for data, described in VECTORS.values() if "record" in described]
    flags = {data[0] & 0x3F for data in records}
    assert flags >= {0, batches.LONE, batches.HAS_DELTAS, batches.LONE | batches.RETAIN}
    assert flags >= {batches.LONE | more for more in (batches.HAS_SEQUENCE, batches.HAS_ROUTE, batches.HAS_EXTENSION)}
    assert {data[0] >> batches.QOS_SHIFT for data in records} == {0, 1, 2}
    assert any(len(described) > 1 for described in described_as("record"))
    counts = {len(one["payloads"]) for described in described_as("record") for one in described}
    assert counts >= {1, 2, 3}
    assert 0x3E in flags  # everything at once


def test_every_control_message_has_an_example() -> None:
    shown = {described["kind"] for described in described_as("control")}
    assert shown == {kind.__struct_config__.tag for kind in get_args(ControlMessage)}
    assert described_as("unknown-kind")
    assert described_as("ignores-unknown-fields")


def test_everything_else_has_an_example() -> None:
    for kind in ("packet", "parameters", "checksum", *DERIVATIONS):
        assert described_as(kind), kind
    assert len(NUMBERS) >= 8
    assert len(VECTORS) >= 50


# -- the session ------------------------------------------------------------------------------------------------------

STEPS = ["hello", "cookie", "connect", "accept", "open", "ack", "publish", "ack", "confirm", "ack", "close"]


def test_the_session_is_one_session() -> None:
    session = [VECTORS[f"session-{place}-{step}"][0] for place, step in enumerate(STEPS, 1)]
    packets = [decode_packet(datagram) for datagram in session]
    frames = [decode_frames(body) for _, _, body in packets]
    assert all(len(found) == 1 for found in frames)
    hello, cookie, connect, accept, opened, ack_open, published, ack_data, confirm, ack_confirm, close = (
        found[0] for found in frames
    )
    assert len(session[0]) == BASE_DATAGRAM_BYTES
    assert isinstance(hello, f.Hello)
    assert isinstance(cookie, f.Cookie)
    assert isinstance(connect, f.Connect)
    assert isinstance(accept, f.Accept)
    client, server = hello.connection_id, accept.connection_id
    ids = [connection_id for connection_id, _, _ in packets]
    assert ids == [0, client, 0, client, server, client, server, client, client, server, server]
    assert [number for _, number, _ in packets] == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3]

    assert cookie.nonce == connect.nonce == hello.nonce
    assert connect.connection_id == hello.connection_id
    assert connect.cookie == cookie.cookie == VECTORS["cookie"][0]
    assert accept.token == VECTORS["reset-token"][0]
    assert decode_parameters(connect.parameters).arq == "stop-and-wait"
    decode_parameters(accept.parameters)
    key = handshake.connection_key(connect.nonce, accept.nonce)
    assert key == VECTORS["connection-key"][0]

    assert isinstance(opened, f.Data)
    assert isinstance(published, f.Data)
    assert (opened.channel, opened.record, opened.position) == (1, 0, 0)
    assert (published.channel, published.record, published.position) == (1, 1, 1)
    assert decode_batches(published.body)[0].payloads == [b"21.5"]
    assert len(session[6]) - len(b"21.5") == 39
    assert isinstance(ack_open, f.Ack)
    assert isinstance(ack_data, f.Ack)
    assert isinstance(ack_confirm, f.Ack)
    assert [ack_open.next_position, ack_data.next_position, ack_confirm.next_position] == [1, 2, 0]
    assert isinstance(confirm, f.Confirm)
    assert (confirm.channel, confirm.sequence) == (published.channel, published.record)
    assert isinstance(close, f.Close)
    assert handshake.same(close.mac, handshake.close_mac(key, "client", close.code, close.reason))


ADDRESS = ("192.0.2.7", 40001)


def test_a_real_server_says_what_the_session_says() -> None:
    """The client's datagrams of the session go to an endpoint that has the session's secrets: its answers are those
    of the page, byte for byte.
    """
    session = {place: VECTORS[f"session-{place}-{step}"][0] for place, step in enumerate(STEPS, 1)}
    secret = to_bytes(VECTORS["cookie"][1]["cookie"]["secret"])
    (accept,) = VECTORS["session-4-accept"][1]["packet"]["frames"]
    random = {32: secret, 8: bytes.fromhex(accept["connection_id"]), 16: bytes.fromhex(accept["nonce"])}
    reset_key = to_bytes(VECTORS["reset-token"][1]["reset-token"]["reset_key"])
    server = Endpoint(EndpointConfig(accepts=True, reset_key=reset_key), entropy=random.__getitem__)
    now = VECTORS["cookie"][1]["cookie"]["time_s"] + 0.5

    def exchange(datagram: bytes) -> list[bytes]:
        server.receive(Train(ADDRESS, datagram, len(datagram)), now)
        return [answer for train in server.trains(now) for answer in train.datagrams()]

    assert exchange(session[1]) == [session[2]]
    assert exchange(session[3]) == [session[4]]
    assert exchange(session[3]) == [session[4]]  # and again, without a second connection
    assert exchange(session[5]) == [session[6]]
    assert exchange(session[7]) == [session[8]]
    connected, opened, published = server.events()
    assert isinstance(connected, Connected)
    assert isinstance(opened, Received)
    assert isinstance(published, Received)
    assert decode_control(opened.body) == to_control({"kind": "open", "topic": "site/7/temperature"})
    connection = connected.connection
    connection.confirm(published.channel, published.record, 2)
    assert [answer for train in server.trains(now) for answer in train.datagrams()] == [session[9]]
    assert exchange(session[10]) == []
    assert exchange(session[11]) == []
    (closed,) = server.events()
    assert isinstance(closed, Closed)
    assert (closed.code, closed.origin) == (Code.NORMAL, "peer")
    assert dict(server.dropped) == {"repeated_connect": 1}
