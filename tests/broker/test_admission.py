"""Logins: names and their proof, sessions that begin, resume and end, clients that wait for a name."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.world import LOG_ID, Peer, World

from godwit.broker.access import Access, Rule
from godwit.broker.admission import MAX_CLAIMANTS, Claimant, NameQueues
from godwit.broker.ports import Credentials, RequestFailure
from godwit.broker.ports import Peer as CorePeer
from godwit.broker.session import made_name
from godwit.broker.settings import Settings
from godwit.limits import LOGIN_TIMEOUT_S, MAX_CLIENT_NAME_BYTES, MAX_SESSION_EXPIRY_S, NAME_PING_S
from godwit.wire import control as c
from godwit.wire import control as proofs
from godwit.wire.control import Login, Will, is_proof, make_proof
from godwit.wire.control_base import Code
from godwit.wire.packet import CloseFrame, encode_frame

SECRET = b"correct horse battery staple"
EVERYTHING = Rule(clients=("*",), allow=frozenset({"publish", "subscribe", "create", "kick"}), topics=("#",))


def guarded(*, anonymous: bool = True) -> Settings:
    return Settings(access=Access(secrets={"alice": SECRET}, rules=(EVERYTHING,), allows_anonymous=anonymous))


def rememberable(world: World, name: str, **fields: Any) -> Peer:
    """A client whose session outlives its connection."""
    client = world.client(name, **{"session_expiry_s": 1000, **fields})
    client.subscribe("something")
    return client


def refused(peer: Peer) -> Code:
    assert peer.closed is not None
    assert peer.closed[1], "a refusal gives its reason"
    return Code(peer.closed[0])


# -- logins -----------------------------------------------------------------------------------------------------------


def test_the_first_words() -> None:
    world = World()
    welcome = world.peer().login("alice")
    assert welcome.name == "alice"
    assert not welcome.resumed
    assert welcome.proof == b""
    assert welcome.log == LOG_ID
    assert welcome.max_message_bytes == world.server.broker.settings.max_message_bytes
    assert world.told("connected") == ["alice connected from 192.0.2.1:40000"]


def test_a_connection_is_admitted_with_its_welcome_and_not_before() -> None:
    world = World(guarded())
    alice, stranger = world.peer(), world.peer()
    assert not alice.is_admitted
    stranger.try_login("alice", proof=bytes(32))
    assert not stranger.is_admitted
    alice.login("alice", secret=SECRET)
    assert alice.is_admitted


def test_a_client_without_a_name_gets_one_and_no_session() -> None:
    world = World()
    first, second = world.peer().login(), world.peer().login()
    assert first.name != second.name
    assert first.name.startswith("anonymous-")
    world.peers[0].subscribe("a")
    world.peers[0].leave()
    assert first.name not in world.server.broker.sessions
    assert world.server.broker.figures()["subscriptions"] == 0


def test_a_client_without_a_name_replaces_its_own_connection() -> None:
    """After a pause of the broker the client has given up a connection that the broker still knows."""
    world = World()
    watcher = world.client("watcher")
    watcher.subscribe("wills")
    will = Will(topic="wills", payload=b"gone")
    older = world.client(None, instance=b"i" * 16, will=will)
    other = world.client(None, instance=b"j" * 16, will=will)
    older.subscribe("a")
    newer = world.peer()
    assert newer.login(None, instance=b"i" * 16, will=will).name == made_name(b"i" * 16)
    assert refused(older) is Code.TAKEN_OVER
    assert other.closed is None
    assert len(world.server.broker.sessions) == 3
    assert world.server.broker.figures()["subscriptions"] == 1  # of the watcher
    assert watcher.got == []  # it is not gone
    newer.die()
    assert watcher.payloads == [b"gone"]


def test_a_proof_opens_the_name_and_the_broker_proves_itself() -> None:
    world = World(guarded())
    peer = world.peer()
    welcome = peer.login("alice", secret=SECRET)
    assert is_proof(welcome.proof, SECRET, "server", peer.binding, "alice")


def test_a_wrong_proof_is_refused() -> None:
    world = World(guarded())
    elsewhere = make_proof(SECRET, "client", bytes(32), "alice")  # right, but for another connection
    for proof in (b"", bytes(32), elsewhere):
        peer = world.peer()
        peer.try_login("alice", proof=proof)
        assert refused(peer) is Code.NOT_ALLOWED
        assert "secret" in (peer.closed or (0, ""))[1]
    assert not world.server.broker.sessions


def test_what_the_broker_said_proves_nothing() -> None:
    world = World(guarded())
    peer = world.peer()
    peer.try_login("alice", proof=make_proof(SECRET, "server", peer.binding, "alice"))
    assert refused(peer) is Code.NOT_ALLOWED


def test_a_broker_for_known_clients_only() -> None:
    world = World(guarded(anonymous=False))
    for name in (None, "bob"):
        peer = world.peer()
        peer.try_login(name)
        assert refused(peer) is Code.NOT_ALLOWED
    world.peer().login("alice", secret=SECRET)


@pytest.mark.parametrize("name", ["", "a\nb", "$broker", "\x7f", "\u00fc" * (MAX_CLIENT_NAME_BYTES // 2 + 1)])
def test_invalid_names(name: str) -> None:
    peer = World().peer()
    peer.try_login(name)
    assert refused(peer) is Code.BAD_NAME


def test_a_longest_name_and_blanks_are_fine() -> None:
    world = World()
    assert world.peer().login("n" * MAX_CLIENT_NAME_BYTES).name == "n" * MAX_CLIENT_NAME_BYTES
    assert world.peer().login("the sensor in room 1").name == "the sensor in room 1"


def test_without_a_login_the_connection_ends() -> None:
    world = World()
    peer, client = world.peer(), world.client("alice")
    world.pass_s(LOGIN_TIMEOUT_S - 0.1)
    assert peer.closed is None
    world.pass_s(0.2)
    assert refused(peer) is Code.NOT_LOGGED_IN
    assert client.closed is None


def test_there_are_only_so_many_sessions() -> None:
    world = World(Settings(max_sessions=2))
    rememberable(world, "a").leave()
    world.client("b")
    peer = world.peer()
    peer.try_login("c")
    assert refused(peer) is Code.TOO_MANY
    assert world.peer().login("a").resumed


# -- takeover ---------------------------------------------------------------------------------------------------------


def test_the_same_run_of_a_client_takes_over_its_older_connection() -> None:
    world = World()
    instance = b"run 1 of alice.."
    will = Will(topic="wills", payload=b"gone")
    older = rememberable(world, "alice", instance=instance, will=will)
    watcher = world.client("watcher")
    watcher.subscribe("wills")
    assert world.peer().login("alice", instance=instance).resumed
    assert refused(older) is Code.TAKEN_OVER
    assert watcher.got == []  # it is not gone


def test_a_session_that_ends_with_its_connection_is_not_resumed_by_a_takeover() -> None:
    world = World()
    instance = b"run 1 of alice.."
    older = world.client("alice", instance=instance)
    older.subscribe("news")
    newer = world.peer()
    assert not newer.login("alice", instance=instance).resumed
    assert refused(older) is Code.TAKEN_OVER
    assert world.server.broker.figures()["subscriptions"] == 0
    newer.subscribe("news")


def test_who_proves_the_name_takes_it_and_the_former_one_is_gone() -> None:
    world = World(guarded())
    older = world.client("alice", secret=SECRET, will=Will(topic="wills", payload=b"gone"))
    watcher = world.client("watcher")
    watcher.subscribe("wills")
    world.peer().login("alice", secret=SECRET)
    assert refused(older) is Code.TAKEN_OVER
    assert watcher.payloads == [b"gone"]


def test_a_name_in_use_is_kept_by_whoever_answers() -> None:
    world = World()
    holder = world.client("alice")
    second = world.peer()
    second.try_login("alice")
    assert refused(second) is Code.NAME_IN_USE
    assert holder.closed is None
    assert len(holder.all(c.Ping)) == 1


def test_a_holder_that_does_not_answer_loses_its_name_to_the_first_that_asked() -> None:
    world = World()
    holder = world.client("alice", session_expiry_s=100)
    holder.answers_pings = False
    second, third = world.peer(), world.peer()
    second.try_login("alice")
    world.pass_s(NAME_PING_S / 2)
    third.try_login("alice")
    assert second.closed is third.closed is None
    assert not second.all(c.Welcome)
    world.pass_s(NAME_PING_S / 2 + 0.1)
    assert refused(holder) is Code.TIMEOUT
    assert second.last(c.Welcome).name == "alice"
    assert refused(third) is Code.NAME_IN_USE, "the new holder answers"
    assert len(holder.all(c.Ping)) == 1


def test_claimants_that_do_not_answer_either_are_passed_over_one_by_one() -> None:
    """A program that was restarted several times in a row, without a goodbye."""
    world = World()
    runs = [world.client("alice")]
    for _ in range(3):
        runs[-1].answers_pings = False
        runs.append(world.peer())
        runs[-1].try_login("alice")
    world.pass_s(3 * NAME_PING_S + 0.1)
    assert [run.end for run in runs] == [Code.TIMEOUT] * 3 + [None]
    assert runs[-1].last(c.Welcome).name == "alice"
    assert len(world.server.broker._admission._names) == 0


def test_only_so_many_wait_for_a_name() -> None:
    world = World()
    world.client("alice").answers_pings = False
    claimants = [world.peer() for _ in range(MAX_CLAIMANTS + 1)]
    for claimant in claimants:
        claimant.try_login("alice")
    assert refused(claimants[-1]) is Code.NAME_IN_USE
    assert all(claimant.closed is None for claimant in claimants[:-1])
    for claimant in claimants[1:-1]:
        claimant.die()
    world.pass_s(NAME_PING_S + 0.1)
    assert claimants[0].last(c.Welcome).name == "alice"
    assert len(world.server.broker._admission._names) == 0


def test_the_same_run_of_a_client_keeps_its_place_on_another_connection() -> None:
    world = World()
    holder = world.client("alice")
    holder.answers_pings = False
    second, again = world.peer(), world.peer()
    second.try_login("alice", instance=b"s" * 16)
    world.pass_s(NAME_PING_S / 2)
    again.try_login("alice", instance=b"s" * 16)
    assert refused(second) is Code.TAKEN_OVER
    world.pass_s(NAME_PING_S / 2 + 0.1)
    assert again.last(c.Welcome).name == "alice"


def test_many_that_wait_for_names_do_not_make_every_login_slow() -> None:
    world = World()
    for number in range(50):
        world.client(f"holder {number}").answers_pings = False
        world.peer().try_login(f"holder {number}", instance=b"w" * 16)
    admission = world.server.broker._admission
    assert len(admission._names) == 50
    world.peers[1].die()
    assert len(admission._names) == 49
    world.pass_s(NAME_PING_S + 0.1)
    assert len(admission._names) == 0
    assert len([peer for peer in world.peers if peer.all(c.Welcome) and peer.closed is None]) == 50


def test_a_holder_that_leaves_meanwhile_makes_room() -> None:
    world = World()
    holder = world.client("alice")
    holder.answers_pings = False
    second = world.peer()
    second.try_login("alice")
    holder.leave()
    assert second.last(c.Welcome).name == "alice"


def test_who_waits_for_a_name_and_goes_is_forgotten() -> None:
    world = World()
    holder = world.client("alice")
    holder.answers_pings = False
    second = world.peer()
    second.try_login("alice")
    second.die()
    world.pass_s(NAME_PING_S + 0.1)
    assert holder.closed is None
    third = world.peer()
    holder.answers_pings = True
    third.try_login("alice")
    assert refused(third) is Code.NAME_IN_USE


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_outlives_its_connection_for_as_long_as_was_asked() -> None:
    world = World()
    rememberable(world, "alice", session_expiry_s=60).leave()
    world.pass_s(59)
    second = world.peer()
    assert second.login("alice", session_expiry_s=60).resumed
    second.die()
    world.pass_s(61)
    assert world.told("session_expired") == ["the session of alice expired"]
    assert not world.peer().login("alice").resumed


def test_a_session_without_subscriptions_is_not_remembered() -> None:
    world = World()
    client = world.client("alice", session_expiry_s=60)
    subscription = client.subscribe("a").subscription
    client.ask(c.Unsubscribe(request=9, subscription=subscription))
    client.leave()
    assert not world.peer().login("alice").resumed


def test_without_an_expiry_it_ends_with_the_connection() -> None:
    world = World()
    first = world.client("alice")
    first.subscribe("a/#")
    first.leave()
    assert world.server.broker.figures()["subscriptions"] == 0
    assert not world.peer().login("alice").resumed


def test_a_broker_keeps_no_session_for_ever() -> None:
    world = World(Settings(max_session_expiry_s=10))
    world.client("alice", session_expiry_s=MAX_SESSION_EXPIRY_S).leave()
    world.pass_s(11)
    assert not world.peer().login("alice").resumed


def test_a_fresh_start_forgets_the_session() -> None:
    world = World()
    first = world.client("alice", session_expiry_s=100)
    first.subscribe("a")
    first.leave()
    publisher = world.client("bob")
    publisher.publish(publisher.open("a"), b"missed")
    second = world.peer()
    assert not second.login("alice", fresh=True).resumed
    second.subscribe("a")
    assert second.got == []


# -- wills ------------------------------------------------------------------------------------------------------------


def watched(**fields: object) -> tuple[World, Peer, Peer]:
    """A world, one who has left a will, and one who waits for it."""
    world = World()
    watcher = world.client("watcher")
    watcher.subscribe("wills/#")
    will = Will(topic="wills/alice", payload=b"gone", **fields)  # type: ignore[arg-type]
    return world, world.client("alice", will=will, session_expiry_s=100), watcher


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_when_its_client_dies(qos: int) -> None:
    world, client, watcher = watched(qos=qos)
    client.die()
    (got,) = watcher.got
    assert (got.topic, got.payload, got.publisher, got.qos) == ("wills/alice", b"gone", "alice", qos)
    assert got.published_us == world.now_us
    late = world.client("late")
    late.subscribe("wills/alice")
    assert late.got == []


def test_a_will_can_be_retained() -> None:
    world, client, _ = watched(retain=True)
    client.die()
    late = world.client("late")
    late.subscribe("wills/alice")
    assert [(got.payload, got.retain) for got in late.got] == [(b"gone", True)]


@pytest.mark.parametrize("code", [Code.NORMAL, Code.SHUTDOWN])
def test_a_goodbye_keeps_the_will_back(code: Code) -> None:
    world, client, watcher = watched()
    client.subscribe("a")
    client.leave(code)
    assert watcher.got == []
    assert world.peer().login("alice").resumed


@pytest.mark.parametrize("code", [Code.PROTOCOL, Code.INTERNAL])
def test_an_end_that_is_no_goodbye_does_not(code: Code) -> None:
    _, client, watcher = watched()
    client.leave(code)
    assert watcher.payloads == [b"gone"]


def test_a_will_is_published_once() -> None:
    world, client, watcher = watched()
    client.die()
    world.client("alice").die()
    assert watcher.payloads == [b"gone"]


def test_a_will_that_cannot_be_is_refused_with_the_login() -> None:
    settings = Settings(
        policies=(("made/#", "explicit"),),
        access=Access(rules=(Rule(clients=("*",), allow=frozenset({"publish"}), topics=("allowed/#", "made/#")),)),
    )
    world = World(settings)
    for topic, code in (
        ("a/+", Code.BAD_TOPIC),
        ("", Code.BAD_TOPIC),
        ("$sys/x", Code.NOT_ALLOWED),
        ("other", Code.NOT_ALLOWED),
        ("made/up", Code.NO_SUCH_TOPIC),
    ):
        peer = world.peer()
        peer.try_login("alice", will=Will(topic=topic, payload=b""))
        assert refused(peer) is code, topic
    world.peer().login("alice", will=Will(topic="allowed/x", payload=b""))


def test_a_will_whose_right_has_ended_is_not_published() -> None:
    def rules(*topics: str) -> Settings:
        everyone = Rule(clients=("*",), allow=frozenset(("publish", "subscribe")), topics=topics)
        return Settings(access=Access(rules=(everyone,)))

    world = World(rules("#"))
    alice = world.client("alice", will=Will(topic="old", payload=b"x"))
    bob = world.client("bob", will=Will(topic="new", payload=b"y"))
    world.server.change_settings(rules("new"))
    alice.die()
    bob.die()
    assert [entry.topic for _, entry in world.store.read(0, 10_000).entries] == ["new"]


def test_who_waits_for_a_name_comes_in_by_the_rules_of_then() -> None:
    world = World()
    alice = world.client("alice")
    alice.answers_pings = False
    mallory = world.peer()
    mallory.try_login("alice")
    access = Access(secrets={"alice": b"s" * 16}, allows_anonymous=False)
    world.server.change_settings(Settings(access=access))
    world.run()
    assert (alice.end, mallory.end) == (Code.NOT_ALLOWED, Code.NOT_ALLOWED)
    assert not mallory.all(c.Welcome)


def test_a_secret_that_was_changed_proves_nothing_any_more() -> None:
    def secrets(of_alice: bytes) -> Settings:
        return Settings(access=Access(secrets={"alice": of_alice, "bob": b"b" * 16}))

    world = World(secrets(b"a" * 16))
    alice = world.client("alice", secret=b"a" * 16)
    bob = world.client("bob", secret=b"b" * 16)
    world.server.change_settings(secrets(b"n" * 16))
    world.run()
    assert (alice.end, bob.end) == (Code.NOT_ALLOWED, None)


def test_who_waits_for_the_name_of_one_that_is_kicked_gets_a_session_of_its_own() -> None:
    world = World()
    alice = world.client("alice", session_expiry_s=100)
    alice.answers_pings = False
    other = world.peer()
    other.try_login("alice", session_expiry_s=100)
    admin = world.client("admin")
    admin.expect(c.Kick(request=admin.number(), client="alice"), c.Done)
    assert other.last(c.Welcome).resumed is False
    admin.expect(c.Kick(request=admin.number(), client="alice"), c.Done)  # it is there, and can be removed as well
    assert other.end == Code.KICKED


def test_sessions_that_anybody_can_leave_behind_do_not_lock_out_who_proves_a_name() -> None:
    secrets = {name: name.encode() * 16 for name in ("a", "b", "c", "d")}
    everything = Rule(clients=("*",), allow=frozenset(("subscribe",)), topics=("#",))
    access = Access(secrets=secrets, allows_anonymous=True, rules=(everything,))
    world = World(Settings(max_sessions=3, access=access))
    rememberable(world, "a", secret=secrets["a"]).leave()
    for name in ("x", "y"):
        rememberable(world, name).leave()
    late = world.peer()
    late.try_login("z")
    assert late.end == Code.TOO_MANY
    for name in ("b", "c"):
        world.client(name, secret=secrets[name])
    assert set(world.server.broker.sessions) == {"a", "b", "c"}
    last = world.peer()
    last.try_login("d", proof=make_proof(secrets["d"], "client", last.binding, "d"))
    assert last.end == Code.TOO_MANY


def test_names_that_the_broker_makes_cannot_be_chosen() -> None:
    """Otherwise a client that learns the name of a nameless controller could take its place."""
    world = World()
    welcome = world.peer().login(instance=b"i" * 16)
    assert welcome.name == made_name(b"i" * 16)
    peer = world.peer()
    peer.try_login(welcome.name)
    assert refused(peer) is Code.BAD_NAME


# -- login check ------------------------------------------------------------------------------------------------------


SECRET_LOGIN_CHECK = b"alice's long secret"
MINE = Rule(clients=("alice",), allow=frozenset(("publish",)), topics=("mine/#",))


def closed_world(**more: Any) -> World:
    access = Access(secrets={"alice": SECRET_LOGIN_CHECK}, rules=(MINE,), allows_anonymous=False)
    return World(Settings(access=access, **more))


def answer(name: str, proof: bytes, **fields: Any) -> tuple[bytes, int]:
    """The bytes that end the connection of a refused login, and how many proofs the broker worked out for it."""
    world = closed_world(default_policy="explicit", topics=("mine/there",))
    peer = world.peer()
    made = 0

    def counting(*args: Any) -> bytes:
        nonlocal made
        made += 1
        return make_proof(*args)

    make_proof = proofs.make_proof
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proofs, "make_proof", counting)
        peer.say(Login(request=1, name=name, instance=bytes(16), proof=proof, **fields))
        world.run()
    assert peer.closed is not None
    assert not peer.said
    code, reason = peer.closed
    return encode_frame(CloseFrame(code, reason, bytes(16))), made


@pytest.mark.parametrize("proof", [b"", b"x" * 32, b"short"])
@pytest.mark.parametrize("will", [None, Will(topic="mine/there", payload=b""), Will(topic="no/such", payload=b"")])
def test_an_unknown_name_and_a_wrong_proof_are_answered_alike(proof: bytes, will: Will | None) -> None:
    known, unknown = answer("alice", proof, will=will), answer("unlisted", proof, will=will)
    assert known == unknown
    assert known[1] == 1


def test_a_will_tells_nothing_about_topics_before_the_proof() -> None:
    wills = [Will(topic=topic, payload=b"") for topic in ("mine/there", "mine/missing", "$sys/x", "bad/+")]
    assert len({answer("alice", b"", will=will) for will in wills}) == 1


def test_the_operator_reads_what_was_wrong() -> None:
    world = closed_world()
    for name in ("alice", "unlisted"):
        world.peer().try_login(name, proof=b"x" * 32)
    texts = world.told("refused")
    assert texts[0].endswith("the proof of the name 'alice' is missing or wrong")
    assert texts[1].endswith("no client 'unlisted' is listed")


def test_the_right_proof_opens_the_door() -> None:
    assert closed_world().client("alice", secret=SECRET_LOGIN_CHECK).closed is None


# -- name queues ------------------------------------------------------------------------------------------------------


def claimant(number: int) -> Claimant:
    credentials = Credentials(name="a", instance=number.to_bytes(16, "big"))
    return Claimant(CorePeer("an address", "a host"), credentials, lambda session, resumed: None)


def test_claimants_are_taken_in_their_order() -> None:
    queues = NameQueues()
    queues.begin("a", [], 7)
    first, second = claimant(1), claimant(2)
    assert queues.join("a", first) is None
    assert queues.join("a", second) is None
    assert ("a" in queues, "b" in queues, len(queues)) == (True, False, 2)
    assert queues.first_due() == ("a", 7)
    assert queues.take("a") == [first, second]
    assert (queues.take("a"), len(queues), queues.first_due()) == ([], 0, None)


def test_the_same_run_takes_its_own_place() -> None:
    queues = NameQueues()
    first, second, again = claimant(1), claimant(2), claimant(1)
    queues.begin("a", [first, second], 7)
    assert queues.join("a", again) is first.peer
    assert len(queues) == 2
    queues.leave(first.peer)
    assert queues.take("a") == [again, second]


def test_a_queue_is_bounded_and_ends_when_all_have_left() -> None:
    queues = NameQueues()
    many = [claimant(number) for number in range(MAX_CLAIMANTS)]
    queues.begin("a", list(many), 7)
    queues.begin("b", [claimant(99)], 8)
    with pytest.raises(RequestFailure, match="8 clients wait for it"):
        queues.join("a", claimant(100))
    for one in many:
        queues.leave(one.peer)
    assert queues.first_due() == ("b", 8)
    assert ("a" in queues, len(queues)) == (False, 1)
