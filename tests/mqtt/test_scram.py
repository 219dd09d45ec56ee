"""SCRAM-SHA-256: the exchange by itself, and as enhanced authentication of MQTT 5.0."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from tests.mqtt import client_packets as client
from tests.mqtt.world import Device, MqttWorld, read_properties

from godwit.broker.access import Access, Rule
from godwit.broker.settings import Settings
from godwit.mqtt.packets import PacketType, Property, Reason, _Cursor
from godwit.mqtt.scram import METHOD, ScramError, ScramExchange

SECRET = b"pencil"
RULE = Rule(clients=("anna",), allow=frozenset(("publish",)), topics=("home/#",))
SETTINGS = Settings(access=Access(secrets={"anna": SECRET, "bert": b"other"}, rules=(RULE,), allows_anonymous=False))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class ScramClient:
    """The client's side, written from RFC 5802."""

    def __init__(self, user: str = "anna", secret: bytes = SECRET) -> None:
        self.secret = secret
        self.bare = f"n={user},r=rOprNGfwEbeRWgbNEkqO"
        self.first = f"n,,{self.bare}".encode()
        self.signature = b""

    def last(self, server_first: bytes) -> bytes:
        values = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salt = base64.b64decode(values["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.secret, salt, int(values["i"]))
        key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c={b64(b'n,,')},r={values['r']}"
        signed = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={b64(proof)}".encode()

    def accepts(self, server_last: bytes) -> bool:
        return server_last == b"v=" + b64(self.signature).encode()


# -- the exchange -----------------------------------------------------------------------------------------------------


def test_the_example_of_rfc_7677() -> None:
    exchange = ScramExchange(base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), b"")
    exchange._own_nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert exchange.begin(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert exchange.user == "user"
    last = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.finish(last, SECRET) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_user_names_with_a_comma_or_an_equals_sign() -> None:
    exchange = ScramExchange(b"salt", b"nonce")
    exchange.begin(b"n,,n=a=2Cb=3Dc,r=x")
    assert exchange.user == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,", b"n,,", b"n,,n=anna", b"n,,n=,r=x", b"n,,r=x", b"p=tls-unique,,n=anna,r=x",
        b"n,a=bert,n=anna,r=x", b"n,,m=1,n=anna,r=x", b"n,,n=a=b,r=x", b"n,,n=anna,r=x,r=y", b"n,,n=\xff,r=x",
        b"n,,n=anna,r=" + b"x" * 5000,
    ],
)  # fmt: skip
def test_a_malformed_first_message(message: bytes) -> None:
    with pytest.raises(ScramError):
        ScramExchange(b"salt", b"nonce").begin(message)


def test_a_malformed_last_message() -> None:
    def exchange() -> tuple[ScramExchange, bytes]:
        one, user = ScramExchange(b"salt", b"nonce"), ScramClient()
        return one, user.last(one.begin(user.first))

    right, last = exchange()
    assert right.finish(last, SECRET)
    for wrong in (
        b"", b"p=", last[:-4], last + b"AAAA", last.replace(b"biws", b"eSws"), last.replace(b"r=r", b"r=x"), b"=" * 9,
    ):  # fmt: skip
        with pytest.raises(ScramError):
            exchange()[0].finish(wrong, SECRET)
    with pytest.raises(ScramError, match="proof is wrong"):
        exchange()[0].finish(last, b"another secret")


# -- in MQTT ----------------------------------------------------------------------------------------------------------


def auth(code: int, data: bytes, method: str = METHOD) -> bytes:
    values: dict[int, Any] = {Property.AUTH_METHOD: method, Property.AUTH_DATA: data}
    return client.packet(0xF0, bytes((code,)), client.properties(5, values))


def properties_of(packet: bytes, skipped: int) -> dict[int, Any]:
    cursor = _Cursor(packet, 1, len(packet))
    cursor.varint()
    cursor.at += skipped
    return read_properties(cursor)


def begin(world: MqttWorld, user: ScramClient, method: str = METHOD) -> tuple[Device, bytes]:
    """Return a client that has sent its CONNECT, and the broker's first message."""
    values = {Property.AUTH_METHOD: method, Property.AUTH_DATA: user.first}
    device = world.device("device", 5, values=values)
    packet = device.packets[-1]
    is_auth = packet[0] >> 4 == PacketType.AUTH
    return device, properties_of(packet, 1)[Property.AUTH_DATA] if is_auth else b""


def test_a_login_and_another_authentication_later() -> None:
    world = MqttWorld(SETTINGS)
    user = ScramClient()
    device, server_first = begin(world, user)
    (connack,) = device.send(auth(0x18, user.last(server_first)))
    assert connack[:1] == b"\x20"
    assert connack[3] == Reason.SUCCESS
    found = properties_of(connack, 2)
    assert found[Property.AUTH_METHOD] == METHOD
    assert user.accepts(found[Property.AUTH_DATA])
    assert device.publish("home/x", qos=1, packet_id=1)[0][4:5] in (b"", b"\x10")
    assert device.publish("elsewhere", qos=1, packet_id=2)[0][4] == Reason.NOT_AUTHORIZED
    (challenge,) = device.send(auth(0x19, user.first))
    (done,) = device.send(auth(0x18, user.last(properties_of(challenge, 1)[Property.AUTH_DATA])))
    assert done[2] == Reason.SUCCESS
    assert user.accepts(properties_of(done, 1)[Property.AUTH_DATA])
    assert device.publish("home/x", qos=1, packet_id=3)
    device.send(auth(0x19, ScramClient("bert", b"other").first))
    other = ScramClient("bert", b"other")
    device.send(auth(0x18, other.last(properties_of(device.packets[-1], 1)[Property.AUTH_DATA])))
    assert device.packets[-1][:1] == b"\xe0"
    assert device.packets[-1][2] == Reason.NOT_AUTHORIZED
    assert device.is_closed


@pytest.mark.parametrize(("user", "secret"), [("anna", b"wrong"), ("stranger", SECRET)])
def test_a_wrong_secret_and_an_unknown_user_look_the_same(user: str, secret: bytes) -> None:
    world = MqttWorld(SETTINGS)
    one = ScramClient(user, secret)
    device, server_first = begin(world, one)
    assert server_first
    assert device.send(auth(0x18, one.last(server_first))) == [b"\x20\x03\x00\x87\x00"]
    assert device.is_closed
    assert not world.server.broker.sessions


@pytest.mark.parametrize("user", ["anna", "stranger"])
def test_wrong_secrets_slow_down(user: str) -> None:
    world = MqttWorld(SETTINGS)
    codes = []
    for _ in range(7):
        one = ScramClient(user, b"wrong")
        device, server_first = begin(world, one)
        codes.append(device.send(auth(0x18, one.last(server_first)))[0][3])
    assert codes == [Reason.NOT_AUTHORIZED] * 5 + [Reason.BUSY] * 2


def test_an_unknown_user_is_refused_where_others_are_anonymous() -> None:
    access = Access(secrets={"anna": SECRET}, rules=(RULE,), allows_anonymous=True)
    world = MqttWorld(Settings(access=access))
    one = ScramClient("stranger")
    device, server_first = begin(world, one)
    assert device.send(auth(0x18, one.last(server_first)))[0][3] == Reason.NOT_AUTHORIZED


def test_packets_that_do_not_belong_into_an_exchange() -> None:
    user = ScramClient()
    wrong = {
        client.publish("home/x", version=5): Reason.PROTOCOL,
        client.PING: Reason.PROTOCOL,
        client.connect("device", 5): Reason.PROTOCOL,
        auth(0x19, user.first): Reason.PROTOCOL,
        auth(0x18, b"", "PLAIN"): Reason.PROTOCOL,
    }
    for packet, reason in wrong.items():
        world = MqttWorld(SETTINGS)
        device, _ = begin(world, user)
        assert device.send(packet)[-1][3] == reason
        assert device.is_closed
    device, _ = begin(MqttWorld(SETTINGS), user, method="PLAIN")
    assert device.packets[-1][3] == Reason.BAD_AUTH_METHOD
    plain = MqttWorld(SETTINGS).device("d", 5, user="anna", password=SECRET)
    assert plain.send(auth(0x19, user.first))[-1][2] == Reason.PROTOCOL


def test_an_exchange_that_never_ends() -> None:
    world = MqttWorld(SETTINGS)
    device, _ = begin(world, ScramClient())
    world.pass_s(11)
    assert device.is_closed
    assert not world.mqtt.connections
