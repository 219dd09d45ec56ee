"""The states of a node, and its behaviour in doubt, with reports that the tests make by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.entries import LOG_ID, make_entry

from godwit.cluster.engine import (
    AppendRefused,
    AppendRequest,
    Beat,
    BeatRequest,
    EngineReport,
    EngineRequest,
    FollowRequest,
    InfoRequest,
    Missing,
    RecordFound,
    RecordRequest,
    Stored,
    StreamInfo,
    TrimRequest,
    Unsuitable,
)
from godwit.cluster.members import MAX_MEMBERS
from godwit.cluster.node import PAUSE_S, ClusterNode
from godwit.cluster.records import APPEND, CLAIM, Claim, Resign, checksum_of, encode_body, encode_parts
from godwit.cluster.values import Heartbeat, LogIdentity, Member, NodeConfig, decode_beat
from godwit.store.block import encode_blocks
from godwit.store.replica import FIRST_STORED_FORMAT, FORMAT, AppendStep, Place

IDENTITY = LogIdentity(LOG_ID, 1, b"secret-8", 0)
KEEP_BYTES = 1 << 20


class Driver:
    """A node whose steps are applied at once. Time passes with `wait`."""

    def __init__(
        self,
        name: str = "a",
        place: Place | None = None,
        *,
        has_content: bool = False,
        seed: int = 1,
        suspect_s: float = 2.0,
    ) -> None:
        self.now = 100.0
        config = NodeConfig(name=name, address=f"udp://{name}", keep_bytes=KEEP_BYTES, suspect_s=suspect_s)
        self.node = ClusterNode(
            config,
            place or Place(),
            lambda: IDENTITY,
            has_content=has_content,
            entropy=Random(seed).randbytes,
            now=self.now,
        )
        self.requests: list[EngineRequest] = []
        self.tokens: list[object] = []
        self.texts: list[str] = []
        self.poll()

    def poll(self) -> None:
        for step in self.node.steps():
            if step.token is not None:
                self.tokens.append(step.token)
            self.node.handle_applied(step.place)
        self.requests += self.node.poll_requests()
        self.texts_now()

    def texts_now(self) -> list[str]:
        """Return all events so far, without applying steps."""
        self.texts += [f"{event.state}: {event.text}" for event in self.node.poll_events()]
        return self.texts

    def feed(self, *reports: EngineReport) -> None:
        for report in reports:
            self.node.handle(report, self.now)
            self.poll()

    def wait(self, seconds: float, *reports: EngineReport) -> None:
        """Let time pass, with these reports every quarter of a second."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.25
            self.node.handle_timers(self.now)
            self.poll()
            self.feed(*reports)

    def take(self, kind: type) -> list[EngineRequest]:
        """Return the requests of a kind so far, and forget all."""
        found = [request for request in self.requests if isinstance(request, kind)]
        self.requests.clear()
        return found

    def appends(self) -> list[AppendRequest]:
        return [request for request in self.take(AppendRequest) if isinstance(request, AppendRequest)]

    def activate(self) -> bytes:
        """Let it claim an empty log, and return the claim."""
        self.wait(4.0, StreamInfo(1, 0))
        (claim,) = self.appends()[:1]
        self.feed(Stored(1, claim.data))
        assert self.node.state == "active"
        self.requests.clear()
        return claim.data

    def propose(self, token: object, offset: int = 0) -> bytes:
        self.node.propose(step(offset), token, self.now)
        self.poll()
        return self.appends()[-1].data


def step(offset: int = 0, payload: bytes = b"x") -> AppendStep:
    return AppendStep(encode_blocks([make_entry(payload)], offset, IDENTITY.secret), [])


def claim_behind(data: bytes | None, epoch: int, number: int, node: str = "b", **more: int) -> bytes:
    claim = Claim(more.get("format", FORMAT), node, f"udp://{node}", LOG_ID, 1, b"secret-8", b"writer-b", 0)
    link = 0 if data is None else checksum_of(data)
    return encode_parts(CLAIM, epoch, number - 1, link, encode_body(claim))[0][0]


def append_behind(data: bytes, epoch: int, number: int, content: AppendStep | None = None) -> bytes:
    return encode_parts(APPEND, epoch, number - 1, checksum_of(data), encode_body(content or step()))[0][0]


def beat(
    name: str,
    state: str = "active",
    epoch: int = 1,
    position: int = 0,
    number: int = 0,
    link: int = 0,
    *,
    run: bytes = b"",
    **more: Any,
) -> Beat:
    run = run or name.encode().ljust(8, b"~")
    fields = (name, run, state, epoch, position, number, link, position, 0, "")
    return Beat(msgspec.msgpack.encode(Heartbeat(*fields, **more)))


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_standby_claims_when_there_is_no_active_broker() -> None:
    driver = Driver()
    driver.wait(1.5, StreamInfo(1, 0))
    assert driver.appends() == []
    driver.wait(1.5, StreamInfo(1, 0))
    (request,) = driver.appends()[:1]
    assert request.after == 0
    driver.feed(Stored(1, request.data))
    assert driver.node.state == "active"
    assert driver.texts == ["active: this node is active in epoch 1"]
    assert driver.take(FollowRequest)[-1] == FollowRequest(None)


def test_a_standby_does_not_claim_while_it_receives_the_active_broker() -> None:
    driver = Driver()
    driver.wait(10.0, StreamInfo(1, 0), beat("b"))
    assert driver.appends() == []
    driver.wait(10.0)  # and not without an answer of the engine
    assert driver.appends() == []


def test_a_standby_that_is_behind_does_not_claim() -> None:
    driver = Driver()
    driver.wait(6.0, StreamInfo(1, 1))
    requests = driver.requests[:]
    assert not any(isinstance(request, AppendRequest) for request in requests)
    assert requests.count(FollowRequest(0)) > 2  # it asks again for the records


def test_a_standby_does_not_claim_if_a_member_has_read_more() -> None:
    driver = Driver()
    driver.wait(6.0, beat("b", "standby", position=3), StreamInfo(1, 0))
    assert driver.appends() == []
    assert driver.texts == [
        "standby: this node does not become active: b has read up to position 3, and the replicated log ends at 0"
    ]
    assert driver.node.claim_problem == "b has read up to position 3, and the replicated log ends at 0"
    driver.wait(6.0, StreamInfo(1, 0))  # b is absent
    assert driver.appends()
    assert driver.node.claim_problem == ""


def test_a_heartbeat_has_the_problem_that_the_caller_has_found() -> None:
    driver = Driver()
    assert driver.node.heartbeat().problem == ""
    driver.node.problem = "its disk is full" * 100
    heartbeat = driver.node.heartbeat()
    assert heartbeat.problem == driver.node.problem[:256]
    found = decode_beat(msgspec.msgpack.encode(heartbeat))
    assert found == heartbeat


def test_of_two_claims_the_first_one_counts() -> None:
    driver = Driver()
    driver.wait(3.0, StreamInfo(1, 0))
    (mine,) = driver.appends()[:1]
    other = claim_behind(None, 1, 1)
    driver.feed(RecordFound(1, other), Stored(2, mine.data))
    assert (driver.node.state, driver.node.active_name, driver.node.void) == ("standby", "b", 1)
    assert not driver.node.in_flight


def test_a_claim_that_was_given_up_may_count_later() -> None:
    driver = Driver()
    driver.wait(3.0, StreamInfo(1, 0))
    (mine,) = driver.appends()[:1]
    junk = encode_parts(APPEND, 9, 5, 5, b"")[0][0]
    driver.feed(RecordFound(1, junk), RecordFound(2, mine.data))
    assert driver.node.state == "active"


# -- proposals --------------------------------------------------------------------------------------------------------


def test_proposals_are_settled_in_order() -> None:
    driver = Driver()
    driver.activate()
    first, second = driver.propose("first"), driver.propose("second", 1)
    driver.feed(Stored(3, second))
    assert driver.tokens == []
    driver.feed(Stored(2, first))
    assert driver.tokens == ["first", "second"]
    assert driver.node.place.position == 3


def test_a_refusal_is_not_a_failure() -> None:
    driver = Driver()
    driver.activate()
    data = driver.propose("first")
    driver.feed(AppendRefused("no answer"))
    assert driver.take(RecordRequest) == [RecordRequest(2)]
    driver.feed(Missing(2, 1, 1))
    driver.wait(0.5)
    assert [request.data for request in driver.appends()] == [data]  # the same bytes
    driver.feed(RecordFound(2, data))
    assert driver.tokens == ["first"]
    driver.feed(Stored(3, data))  # the first request was stored late, too, and is void
    driver.feed(RecordFound(3, data))
    assert (driver.tokens, driver.node.state, driver.node.void) == (["first"], "active", 1)


def test_without_an_answer_it_looks_for_its_record() -> None:
    driver = Driver()
    driver.activate()
    driver.propose("first")
    driver.wait(2.0)
    assert RecordRequest(2) in driver.take(RecordRequest)


def test_a_void_record_in_the_way_moves_the_proposals() -> None:
    driver = Driver()
    claim = driver.activate()
    first, second = driver.propose("first"), driver.propose("second", 1)
    void = append_behind(claim, 7, 2)
    driver.feed(AppendRefused(), RecordFound(2, void), Stored(3, second))
    assert driver.node.void == 2
    driver.feed(Missing(4, 1, 3))
    driver.wait(0.5)
    assert [(request.after, request.data) for request in driver.appends()] == [(3, first), (4, second)]
    driver.feed(Stored(4, first), Stored(5, second))
    assert driver.tokens == ["first", "second"]


def test_a_foreign_claim_deposes_and_nothing_is_answered() -> None:
    driver = Driver()
    mine = driver.activate()
    data = driver.propose("first")
    driver.feed(RecordFound(2, claim_behind(mine, 2, 2)), Stored(3, data))
    assert (driver.node.state, driver.tokens, driver.node.is_closing) == ("deposed", [], True)
    with pytest.raises(RuntimeError, match="deposed"):
        driver.node.propose(step(), None, driver.now)
    driver.node.handle_closed()
    driver.poll()
    assert (driver.node.state, driver.node.active_name) == ("standby", "b")
    assert FollowRequest(3) in driver.requests


def test_an_idle_active_node_notices_a_foreign_claim() -> None:
    driver = Driver()
    mine = driver.activate()
    driver.feed(beat("b", epoch=2))
    assert driver.take(RecordRequest) == [RecordRequest(2)]
    driver.feed(RecordFound(2, claim_behind(mine, 2, 2)))
    assert driver.node.state == "deposed"


def test_without_the_engine_it_withdraws_and_returns_as_a_standby() -> None:
    driver = Driver()
    driver.activate()
    driver.propose("first")
    driver.wait(7.0, AppendRefused(), StreamInfo(1, 1))
    assert (driver.node.state, driver.tokens) == ("withdrawn", [])
    driver.node.handle_closed()
    driver.feed(StreamInfo(1, 1))
    assert driver.node.state == "standby"
    driver.wait(4.0, StreamInfo(1, 1))
    assert driver.appends()  # and claims again


def test_a_failing_disk_withdraws_and_does_not_claim() -> None:
    driver = Driver()
    driver.activate()
    data = driver.propose("first")
    driver.node.handle(Stored(2, data), driver.now)
    driver.node.handle_apply_failed("the disk is full")
    assert driver.texts_now()[-1] == "withdrawn: the disk is full"
    driver.node.handle_closed()
    driver.node.handle(StreamInfo(1, 2), driver.now)
    assert driver.texts_now()[-1] == "standby: the engine answers again"
    for _ in range(40):
        driver.now += 0.25
        driver.node.handle_timers(driver.now)
        driver.node.handle(StreamInfo(1, 2), driver.now)
    assert not [request for request in driver.node.poll_requests() if isinstance(request, AppendRequest)]
    driver.poll()  # the disk works again
    driver.wait(3.0, StreamInfo(1, 2))
    assert driver.appends()


def test_a_resignation_lets_the_named_node_claim_at_once() -> None:
    one, two = Driver("a"), Driver("b", seed=2)
    claim = one.activate()
    one.node.resign("b", one.now)
    one.poll()
    (resign,) = one.appends()
    one.feed(Stored(2, resign.data))
    assert (one.node.state, one.texts[-1]) == ("standby", "standby: handed over to b")
    two.feed(RecordFound(1, claim), RecordFound(2, resign.data))
    two.wait(0.5, StreamInfo(1, 2))
    assert two.appends()


@pytest.mark.parametrize("seed", range(8))
def test_behind_a_resignation_a_standby_claims_within_half_a_second(seed: int) -> None:
    one, two = Driver("a"), Driver("b", seed=seed)
    claim = one.activate()
    one.node.resign("", one.now)
    one.poll()
    (resign,) = one.appends()
    two.feed(RecordFound(1, claim))
    two.wait(1.0, beat("a"), StreamInfo(1, 1))
    two.feed(RecordFound(2, resign.data))
    began = two.now
    two.feed(beat("a"))  # sent before the resignation, and late
    while not two.appends() and two.now < began + 5.0:
        two.now = two.node.next_timer()
        two.node.handle_timers(two.now)
        two.feed(*[StreamInfo(1, 2) for request in two.node.poll_requests() if isinstance(request, InfoRequest)])
    assert two.now - began <= 0.5


# -- pauses -----------------------------------------------------------------------------------------------------------


def follower(**more: Any) -> Driver:
    """Return a standby that has read the claim of node a."""
    driver = Driver("b", **more)
    driver.feed(RecordFound(1, claim_behind(None, 1, 1, node="a")))
    driver.wait(1.0, beat("a"), StreamInfo(1, 1))
    driver.requests.clear()
    return driver


def test_a_pause_of_a_standby_is_no_silence_of_the_active_node() -> None:
    driver = follower()
    driver.now += 60.0
    driver.feed(StreamInfo(1, 1))  # from before the pause: the heartbeats since then are behind it
    driver.wait(1.5, StreamInfo(1, 1))
    assert driver.appends() == []
    driver.wait(2.0, StreamInfo(1, 1))  # but the silence after it is
    assert driver.appends()


def test_a_pause_of_the_active_node_is_no_silence_of_the_engine() -> None:
    driver = Driver()
    driver.activate()
    driver.propose("first")
    driver.now += 60.0
    states = []
    for seconds in (3.0, 4.0):
        driver.wait(seconds)
        states.append(driver.node.state)
    assert states == ["active", "withdrawn"]


def test_members_are_present_after_a_pause() -> None:
    driver = follower()
    driver.feed(beat("c", "standby", position=5))
    driver.now += 60.0
    driver.wait(2.5, StreamInfo(1, 1))
    assert driver.appends() == []  # c has read more than there is


@given(st.lists(st.tuples(st.sampled_from(("run", "pause", "heartbeat")), st.floats(0.05, 30.0)), max_size=40))
def test_only_time_in_which_a_standby_runs_is_silence(turns: list[tuple[str, float]]) -> None:
    driver = follower()
    silence_s = 0.0
    for kind, seconds in turns:
        if kind == "heartbeat":
            driver.feed(beat("a"))
            silence_s = 0.0
        elif kind == "pause":
            driver.now += seconds
            driver.feed(StreamInfo(1, 1))
            driver.wait(0.25, StreamInfo(1, 1))
            silence_s += min(seconds, 0.5 + PAUSE_S) + 0.25
        else:
            for _ in range(4):
                driver.wait(0.25, StreamInfo(1, 1))
                silence_s += 0.25
        if driver.appends():
            assert silence_s >= 2.0
            return


# -- members that are wrongly configured ------------------------------------------------------------------------------

OTHER_LOG = b"another log of x"


def test_heartbeats_of_another_log_are_ignored() -> None:
    driver = Driver()
    driver.activate()
    stranger = beat("z", "active", 9, 1, 1, 99, log_id=OTHER_LOG)
    driver.wait(3.0, stranger, StreamInfo(1, 1))
    assert driver.node.state == "active"
    assert "z" not in driver.node.members
    assert not [one for one in driver.take(RecordRequest) if one == RecordRequest(1)]
    assert sum("z at  has another log, and is ignored" in text for text in driver.texts) == 1
    standby = follower()
    standby.wait(4.0, beat("z", "active", 9, 7, 7, 99, log_id=OTHER_LOG), StreamInfo(1, 1))
    assert standby.appends()  # it does not count, as a sign of an active node or as a reason not to claim
    empty = Driver()
    empty.wait(4.0, beat("z", "active", log_id=OTHER_LOG), StreamInfo(1, 0))
    assert empty.appends()


def test_a_member_that_has_not_verified_its_folder_is_not_compared() -> None:
    driver = Driver()
    claim = driver.activate()
    driver.wait(3.0, beat("z", "standby", 1, 1, 1, 99, log_id=LOG_ID, is_verified=False), StreamInfo(1, 1))
    assert driver.node.state == "active"
    assert RecordRequest(1) not in driver.requests
    # With a folder it is not verified itself, until it has found its last record.
    place = Place(1, 1, 1, checksum_of(claim), b"writer-b")
    late = Driver("b", place)
    assert not late.node.heartbeat().is_verified
    assert late.node.claim_problem == "it has not found the last record of its file in the replicated log yet"
    late.feed(RecordFound(1, claim))
    assert late.node.heartbeat().is_verified
    assert late.node.claim_problem == ""
    assert late.node.heartbeat().log_id == LOG_ID


def test_a_verified_member_with_another_history_stops_it() -> None:
    driver = Driver()
    driver.activate()
    driver.feed(beat("b", "standby", position=1, number=1, link=99, log_id=LOG_ID))
    assert "this node and b have read different records up to position 1" in stopped(driver)


def test_a_folder_whose_last_record_is_deleted_is_proven_by_the_next_one() -> None:
    claim = claim_behind(None, 1, 1)
    driver = Driver(place=Place(1, 1, 1, checksum_of(claim), b"writer-b"))
    driver.feed(Missing(1, 2, 2))
    driver.wait(4.0, StreamInfo(2, 2))
    driver.feed(RecordFound(2, append_behind(claim_behind(None, 1, 1, node="other"), 1, 2)))
    driver.wait(4.0, StreamInfo(2, 2))
    assert driver.appends() == []  # all records are void for the folder of another cluster
    assert not driver.node.heartbeat().is_verified
    assert "was deleted from the replicated log, and it waits for a later one" in driver.node.claim_problem
    driver.feed(RecordFound(3, append_behind(claim, 1, 2)))
    assert driver.node.heartbeat().is_verified
    assert driver.node.claim_problem == ""
    driver.wait(4.0, StreamInfo(2, 3))
    assert driver.appends()


def test_a_setting_of_a_standby_is_not_too_short_for_the_active_node() -> None:
    driver = follower(suspect_s=0.2)
    for _ in range(20):
        driver.feed(beat("a", heartbeat_s=0.5))
        driver.wait(0.5, StreamInfo(1, 1))
    assert driver.appends() == []
    driver.wait(2.0, StreamInfo(1, 1))
    assert driver.appends()


# -- reasons to stop --------------------------------------------------------------------------------------------------


def stopped(driver: Driver) -> str:
    assert driver.node.state == "stopped", driver.node.state
    assert driver.node.next_timer() <= driver.now + 1.0  # it still sends its state
    driver.requests.clear()
    driver.wait(1.0)
    assert driver.take(BeatRequest)
    return driver.node.reason


def test_less_than_before_stops_it_after_a_while() -> None:
    driver = Driver()
    driver.activate()
    driver.feed(Stored(2, driver.propose("first")))
    driver.wait(3.0, StreamInfo(1, 1))
    assert driver.node.state == "active"  # a server may be behind
    driver.wait(3.0, StreamInfo(1, 1))
    assert "ends at position 1, and this node has read it up to 2" in stopped(driver)


def test_many_old_answers_at_once_are_no_evidence() -> None:
    driver = Driver()
    driver.activate()
    driver.feed(Stored(2, driver.propose("first")))
    driver.feed(*[StreamInfo(1, 1)] * 50)
    driver.now += 30.0
    driver.feed(*[StreamInfo(1, 1)] * 50)
    assert driver.node.state == "active"


def test_a_hole_stops_it() -> None:
    driver = Driver()
    driver.wait(8.0, RecordFound(2, claim_behind(None, 1, 1)), Missing(1, 1, 2))
    assert "position 1 of the replicated log is missing" in stopped(driver)


def test_a_trimmed_place_stops_it() -> None:
    driver = Driver()
    driver.feed(StreamInfo(5, 9))
    assert "Seed it from a backup" in stopped(driver)


def test_a_damaged_record_stops_it() -> None:
    driver = Driver()
    driver.feed(RecordFound(1, b"no record"))
    assert "position 1 of the replicated log is damaged" in stopped(driver)


def test_a_newer_format_stops_it() -> None:
    driver = Driver()
    driver.feed(RecordFound(1, claim_behind(None, 1, 1, format=FORMAT + 1)))
    assert "update this node" in stopped(driver)


def test_the_place_has_the_newest_format_of_its_records() -> None:
    driver = Driver()
    driver.activate()
    assert driver.node.place.format == FORMAT
    older = Driver("b")
    older.feed(RecordFound(1, claim_behind(None, 1, 1, format=FIRST_STORED_FORMAT - 1)))
    assert older.node.place.format == FIRST_STORED_FORMAT  # as in files that do not name it


def test_an_invalid_body_stops_it() -> None:
    driver = Driver()
    driver.feed(RecordFound(1, encode_parts(CLAIM, 1, 0, 0, b"\xc0")[0][0]))
    assert "position 1 is invalid" in stopped(driver)


def test_another_record_at_its_place_stops_it() -> None:
    driver = Driver(place=Place(4, 1, 4, 77, b"writer-b"))
    driver.wait(1.0)
    assert RecordRequest(4) in driver.take(RecordRequest)
    driver.feed(RecordFound(4, claim_behind(None, 1, 1)))
    assert "is not the one that the file of this node has" in stopped(driver)


def test_the_same_record_at_its_place_lets_it_follow() -> None:
    claim = claim_behind(None, 1, 1)
    driver = Driver(place=Place(1, 1, 1, checksum_of(claim), b"writer-b"))
    driver.wait(0.5)
    driver.feed(RecordFound(1, claim))
    assert driver.take(FollowRequest) == [FollowRequest(1)]
    driver.feed(RecordFound(2, append_behind(claim, 1, 2)))
    assert driver.node.place.position == 2


def test_an_unsuitable_engine_stops_it() -> None:
    driver = Driver()
    driver.activate()
    driver.feed(Unsuitable("it acknowledges too early"))
    assert stopped(driver) == "it acknowledges too early"


def test_content_without_a_place_stops_it() -> None:
    assert "begin one with it" in stopped(Driver(has_content=True))


def test_a_foreign_step_stops_it() -> None:
    driver = Driver()
    driver.node.handle(RecordFound(1, claim_behind(None, 1, 1)), driver.now)
    driver.node.handle_apply_failed("another log", is_foreign=True)
    assert stopped(driver) == "another log"


def test_of_two_nodes_with_one_name_the_later_one_stops() -> None:
    driver = Driver("b")
    driver.wait(2.0, beat("b", "standby", age_s=50.0))
    assert driver.node.state == "standby"  # late messages of an earlier run
    driver.wait(4.0, beat("b", "standby", age_s=50.0))
    assert "another process is the node b" in stopped(driver)


def test_of_two_nodes_with_one_name_the_active_one_and_the_earlier_one_stay() -> None:
    active = Driver("b")
    active.activate()
    active.wait(6.0, beat("b", "standby", age_s=50.0), StreamInfo(1, 1))
    assert active.node.state == "active"
    standby = follower()
    standby.wait(3.0, beat("a"))
    standby.wait(6.0, beat("b", "standby", age_s=0.5), beat("a"))
    standby.wait(6.0, beat("b", "standby", age_s=50.0, is_verified=False), beat("a"))
    assert standby.node.state == "standby"
    standby.wait(6.0, beat("b", "active", age_s=0.5), beat("a"))
    assert "another process is the node b" in stopped(standby)


def test_of_two_nodes_with_one_name_that_start_together_one_stops() -> None:
    states = []
    for run in (bytes(8), b"\xff" * 8):
        driver = Driver("b")
        for _ in range(24):
            driver.wait(0.25, beat("b", "standby", run=run, age_s=driver.now - 100.0))
        states.append(driver.node.state)
    assert states == ["standby", "stopped"]


# -- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size_bytes", "applied", "below"),
    [
        (KEEP_BYTES, 11, None),  # nodes that are away, and were never seen, may need them
        (KEEP_BYTES * 11 // 10, 11, 4),
        (KEEP_BYTES * 11 // 10, 3, 3),  # a node that runs and is behind
        (KEEP_BYTES * 22 // 10, 9, 8),
        (KEEP_BYTES * 22 // 10, 3, 3),  # the only other one
        (KEEP_BYTES * 22 // 10, 1, None),
    ],
)
def test_records_above_the_limit_are_trimmed(size_bytes: int, applied: int, below: int | None) -> None:
    driver = Driver()
    driver.activate()
    for number in range(2, 12):
        driver.feed(Stored(number, driver.propose(number)))
    one = Heartbeat("b", b"b", "standby", 1, 0, 0, 0, applied, 0, "")
    driver.node.members["b"] = Member(one, driver.now + 100)
    unverified = Heartbeat("c", b"c", "standby", 1, 0, 0, 0, 11, 0, "", is_verified=False)
    driver.node.members["c"] = Member(unverified, driver.now + 100)  # it may have another log
    driver.wait(6.0, StreamInfo(1, 11, size_bytes))
    assert set(driver.take(TrimRequest)) == ({TrimRequest(below)} if below else set())
    has_remark = any(
        "because no other node has its first records: start the other nodes" in one for one in driver.texts
    )
    assert has_remark == (applied == 1)


@given(st.binary(max_size=200))
def test_any_bytes_may_come_as_a_message_of_a_member(data: bytes) -> None:
    driver = Driver()
    driver.feed(Beat(data))
    assert driver.node.state == "standby"


def test_members_are_limited() -> None:
    driver = Driver()
    driver.feed(*[beat(f"n{number}", "standby") for number in range(100)], Beat(bytes(5000)))
    assert len(driver.node.members) == MAX_MEMBERS


def test_a_resigning_node_that_is_deposed_is_a_standby() -> None:
    driver = Driver()
    mine = driver.activate()
    driver.node.resign("", driver.now)
    driver.poll()
    driver.feed(RecordFound(2, claim_behind(mine, 2, 2)))
    assert driver.node.state == "standby"
    assert encode_body(Resign()) in driver.appends()[-1].data
