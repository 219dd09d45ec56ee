"""docs/PROTOCOL.md is true: every example in it decodes to what it says and encodes to what it shows, and a real server
answers its session with its bytes.
"""

from __future__ import annotations

import hmac
from typing import Any, TypeVar, get_args

import cbor2
import pytest
from tests.wire.protocol_page import (
    DATA_FRAMES,
    ENCODERS,
    FLAGS,
    MATCHES,
    NUMBERS,
    VECTORS,
    to_batch,
    to_bytes,
    to_control,
    to_frame,
    to_group,
    to_parameters,
    to_plain,
    to_properties,
)

from godwit.broker.topics import FilterTrie, TopicTree, check_filter, check_topic
from godwit.client.files import CHUNK_BYTES, FileHeader, decode_header
from godwit.errors import BadFilterError, BadTopicError
from godwit.limits import BASE_DATAGRAM_BYTES
from godwit.transport import handshake
from godwit.transport.config import EndpointConfig
from godwit.transport.endpoint import Endpoint
from godwit.transport.events import Closed, Connected, Received, Train
from godwit.wire import batch as batches
from godwit.wire import packet as f
from godwit.wire.batch import decode_batches
from godwit.wire.control import (
    ControlMessage,
    Login,
    Opened,
    UnknownKind,
    Welcome,
    decode_control,
    decode_in_band,
    is_proof,
    make_proof,
)
from godwit.wire.control_base import Code
from godwit.wire.extension import check_properties, decode_extension, decode_properties, encode_extension
from godwit.wire.filters import matches
from godwit.wire.packet import Frame, decode_frames, decode_packet, encode_frame, expand_number
from godwit.wire.parameters import decode_parameters
from godwit.wire.work import FromBroker, FromClient, decode_from_broker, decode_from_client

T = TypeVar("T")

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
        case "login-binding":
            return hmac.digest(bytes.fromhex(of["key"]), b"godwit 1 login", "sha256")
        case "proof":
            content = f"godwit 1 {of['side']} ".encode() + bytes.fromhex(of["binding"]) + of["name"].encode()
            return hmac.digest(to_bytes(of["secret"]), content, "sha256")
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
        case "login-binding":
            return handshake.login_binding(bytes.fromhex(of["key"]))
        case "proof":
            found = make_proof(to_bytes(of["secret"]), of["side"], bytes.fromhex(of["binding"]), of["name"])
            assert is_proof(found, to_bytes(of["secret"]), of["side"], bytes.fromhex(of["binding"]), of["name"])
            return found
        case "path-mac":
            return handshake.path_mac(bytes.fromhex(of["key"]), of["sender"], bytes.fromhex(of["challenge"]))
        case "close-mac":
            return handshake.close_mac(bytes.fromhex(of["key"]), of["sender"], of["code"], of["reason"])
        case "reset-token":
            return handshake.reset_token(to_bytes(of["reset_key"]), connection_id)
    raise KeyError(kind)


DERIVATIONS = ("cookie", "connection-key", "login-binding", "proof", "path-mac", "close-mac", "reset-token")

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
        case "extension":
            fields = {int(key): to_plain(one) for key, one in value.items()}
            assert decode_extension(data) == fields
            assert encode_extension(fields) == data
            return
        case "control":
            assert cbor2.loads(data) == to_plain(value)
            assert decode_control(data) == to_control(value)
        case "in-band":
            assert decode_in_band(data) == to_control(value)
        case "group":
            group = to_group(value)
            decode = decode_from_client if isinstance(group[0], FromClient) else decode_from_broker
            assert decode(data) == group
        case "file":
            assert cbor2.loads(data) == {"file": to_plain(value)}
            assert decode_header(data, "files/reports", 300_000 - CHUNK_BYTES) == FileHeader(**to_plain(value))
        case "parameters":
            assert decode_parameters(data) == to_parameters(value)
        case "unknown-kind":
            assert decode_control(data) == UnknownKind(**value)
            return
        case "ignores-unknown-fields":
            assert decode_control(data) == to_control(value)
            return
        case "checksum" | "properties":
            pass
        case _ if kind in DERIVATIONS:
            assert derive(kind, value) == data
            assert derive_with_the_code(kind, value) == data
            return
        case _:
            pytest.fail(f"an example of an unknown kind: {kind}")
    assert ENCODERS[kind](value) == data


@pytest.mark.parametrize("name", [name for name, (_, described) in VECTORS.items() if "properties" in described])
def test_the_properties(name: str) -> None:
    data, described = VECTORS[name]
    assert check_properties(data) == decode_properties(data) == to_properties(described["properties"])


@pytest.mark.parametrize(("data", "described"), DATA_FRAMES)
def test_the_data_frames(data: bytes, described: dict[str, list[str]]) -> None:
    flags = sum(FLAGS[name] for name in described["flags"])
    frame = f.DataFrame(flags, 3, 9, 0 if flags & f.WHOLE else 1160, 77 if flags & f.HAS_POSITION else None, b"abcd")
    assert encode_frame(frame) == data
    assert decode_frames(data) == [frame]


@pytest.mark.parametrize(("data", "described"), NUMBERS)
def test_the_numbers(data: bytes, described: dict[str, str]) -> None:
    number = int(described["number"], 16)
    assert expand_number(int.from_bytes(data, "big"), int(described["expected"], 16)) == number
    assert number.to_bytes(8, "big")[4:] == data


@pytest.mark.parametrize(("pattern", "topic", "answer"), MATCHES)
def test_the_filters(pattern: str, topic: str, answer: str) -> None:
    check_filter(pattern)
    check_topic(topic)
    trie: FilterTrie[str] = FilterTrie()
    trie.add(pattern, "found")
    tree = TopicTree()
    tree.add(topic)
    assert matches(pattern, topic) == bool(trie.match(topic)) == bool(list(tree.match(pattern))) == (answer == "yes")


def test_what_is_no_filter() -> None:
    """As the page lists it below its vectors of filters."""
    for text in ("", "a/#/b", "a#", "a/b+", "a/**", "#/", "a" * 1025, "a/" * 64 + "a", "a\n"):
        with pytest.raises(BadFilterError):
            check_filter(text)
        with pytest.raises(BadTopicError):
            check_topic(text)


# -- nothing is missing -----------------------------------------------------------------------------------------------


def described_as(kind: str) -> list[Any]:
    return [described[kind] for _, described in VECTORS.values() if kind in described]


def test_every_frame_has_an_example() -> None:
    types = {data[0] for data, described in VECTORS.values() if "frame" in described}
    assert types == set(range(f.PING, f.TOKEN + 1))
    described = {f"{name}Frame" for name in described_as("frame")}
    assert described | {"DataFrame"} == {kind.__name__ for kind in get_args(Frame)}


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
    shown = {described["kind"] for described in described_as("control") + described_as("in-band")}
    assert shown == {kind.__struct_config__.tag for kind in get_args(ControlMessage)}
    assert described_as("unknown-kind")
    assert described_as("ignores-unknown-fields")


def test_every_group_has_an_example() -> None:
    shown = {described["head"]["kind"] for described in described_as("group")}
    assert shown == {kind.__struct_config__.tag for kind in (*get_args(FromClient), *get_args(FromBroker))}


def test_everything_else_has_an_example() -> None:
    for kind in ("packet", "parameters", "checksum", "file", "extension", "properties", *DERIVATIONS):
        assert described_as(kind), kind
    assert len(NUMBERS) >= 8
    assert len(VECTORS) >= 50


# -- the session ------------------------------------------------------------------------------------------------------

STEPS = [
    "hello", "cookie", "connect", "accept", "login", "welcome", "ack", "open", "opened", "ack", "publish", "ack",
    "confirm", "ack", "close",
]  # fmt: skip
SESSION = {place: VECTORS[f"session-{place}-{step}"][0] for place, step in enumerate(STEPS, 1)}
PACKETS = {place: decode_packet(datagram) for place, datagram in SESSION.items()}
FRAMES = {place: decode_frames(body) for place, (_, _, body) in PACKETS.items()}
FROM_CLIENT = {1, 3, 5, 7, 8, 10, 11, 14, 15}
NAME, SECRET = "sensor-1", b"correct horse battery staple"


def frame(place: int, kind: type[T]) -> T:
    (found,) = (one for one in FRAMES[place] if isinstance(one, kind))
    return found


def test_the_session_begins_with_a_handshake() -> None:
    hello, cookie, connect, accept = (
        frame(1, f.HelloFrame),
        frame(2, f.CookieFrame),
        frame(3, f.ConnectFrame),
        frame(4, f.AcceptFrame),
    )
    assert len(SESSION[1]) == BASE_DATAGRAM_BYTES
    assert cookie.nonce == connect.nonce == hello.nonce
    assert connect.connection_id == hello.connection_id
    assert connect.cookie == cookie.cookie == VECTORS["cookie"][0]
    assert accept.token == VECTORS["reset-token"][0]
    assert decode_parameters(connect.parameters).arq == "stop-and-wait"
    decode_parameters(accept.parameters)
    assert handshake.connection_key(connect.nonce, accept.nonce) == VECTORS["connection-key"][0]


def test_the_session_counts_packets_and_positions() -> None:
    client, server = frame(1, f.HelloFrame).connection_id, frame(4, f.AcceptFrame).connection_id
    for place, (connection_id, _, _) in PACKETS.items():
        expected = (0 if place < 5 else server) if place in FROM_CLIENT else client
        assert connection_id == expected, place
    numbers = {place: number for place, (_, number, _) in PACKETS.items()}
    assert [numbers[place] for place in sorted(FROM_CLIENT) if place > 4] == list(range(7))
    assert [numbers[place] for place in (6, 9, 12, 13)] == list(range(4))
    places = [(place, frame(place, f.DataFrame)) for place in (5, 6, 8, 9, 11)]
    assert [(data.channel, data.record, data.position) for _, data in places] == [
        (0, 0, 0), (0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 2),
    ]  # fmt: skip
    positions = {6: 1, 7: 1, 9: 2, 10: 2, 12: 3, 14: 2}
    assert {place: frame(place, f.AckFrame).next_position for place in positions} == positions


def test_the_session_logs_in_and_publishes() -> None:
    key = VECTORS["connection-key"][0]
    binding = handshake.login_binding(key)
    login = decode_control(frame(5, f.DataFrame).body)
    assert isinstance(login, Login)
    assert is_proof(login.proof, SECRET, "client", binding, NAME)
    welcome = decode_control(frame(6, f.DataFrame).body)
    assert isinstance(welcome, Welcome)
    assert is_proof(welcome.proof, SECRET, "server", binding, NAME)
    assert welcome.request == login.request
    assert decode_control(frame(9, f.DataFrame).body) == Opened(channel=1, subscribers=2)
    published, confirm, close = frame(11, f.DataFrame), frame(13, f.ConfirmFrame), frame(15, f.CloseFrame)
    assert decode_batches(published.body)[0].payloads == [b"21.5"]
    assert len(SESSION[11]) - len(b"21.5") == 39
    assert (confirm.channel, confirm.sequence) == (published.channel, published.record)
    assert handshake.same(close.mac, handshake.close_mac(key, "client", close.code, close.reason))


ADDRESS = ("192.0.2.7", 40001)


def test_a_real_server_says_what_the_session_says() -> None:
    """The client's datagrams of the session go to an endpoint that has the session's secrets: its answers are those
    of the page, byte for byte.
    """
    secret = to_bytes(VECTORS["cookie"][1]["cookie"]["secret"])
    (accept,) = VECTORS["session-4-accept"][1]["packet"]["frames"]
    random = {32: secret, 8: bytes.fromhex(accept["connection_id"]), 16: bytes.fromhex(accept["nonce"])}
    reset_key = to_bytes(VECTORS["reset-token"][1]["reset-token"]["reset_key"])
    window_bytes = accept["parameters"]["channel_window_bytes"]  # half of the default
    config = EndpointConfig(accepts=True, reset_key=reset_key, channel_window_bytes=window_bytes)
    server = Endpoint(config, entropy=random.__getitem__)
    now = VECTORS["cookie"][1]["cookie"]["time_s"] + 0.5

    def feed(datagram: bytes) -> None:
        server.receive(Train(ADDRESS, datagram, len(datagram)), now)

    def drain() -> list[bytes]:
        return [answer for train in server.trains(now) for answer in train.datagrams()]

    def exchange(datagram: bytes) -> list[bytes]:
        feed(datagram)
        return drain()

    assert exchange(SESSION[1]) == [SESSION[2]]
    assert exchange(SESSION[3]) == [SESSION[4]]
    assert exchange(SESSION[3]) == [SESSION[4]]  # and again, without a second connection
    feed(SESSION[5])
    connected, login = server.events()
    assert isinstance(connected, Connected)
    assert isinstance(login, Received)
    connection = connected.connection
    connection.send(0, frame(6, f.DataFrame).body)
    assert drain() == [SESSION[6]]
    assert exchange(SESSION[7]) == []
    feed(SESSION[8])
    (opened,) = server.events()
    assert isinstance(opened, Received)
    assert decode_control(opened.body) == to_control({"kind": "open", "topic": "site/7/temperature"})
    connection.send(0, frame(9, f.DataFrame).body)
    assert drain() == [SESSION[9]]
    assert exchange(SESSION[10]) == []
    assert exchange(SESSION[11]) == [SESSION[12]]
    (published,) = server.events()
    assert isinstance(published, Received)
    connection.confirm(published.channel, published.record, 2)
    assert drain() == [SESSION[13]]
    assert exchange(SESSION[14]) == []
    assert exchange(SESSION[15]) == []
    (closed,) = server.events()
    assert isinstance(closed, Closed)
    assert (closed.code, closed.origin) == (Code.NORMAL, "peer")
    assert dict(server.dropped) == {"repeated_connect": 1}
