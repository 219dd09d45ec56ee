"""The broker world: good seeds pass, runs of a seed are equal, and each planted fault is caught."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.sim.worlds.broker_world import (
    DEATH,
    LOST,
    OTHER,
    PLAN,
    READER,
    SLOW,
    STALE,
    client,
    messages,
    run,
)

from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue
from godwit.broker.delivery import Delivery
from godwit.broker.effects import Append
from godwit.broker.identities import Identities
from godwit.broker.subscription import BrokerSubscription
from godwit.client.protocol import ClientProtocol
from godwit.client.subscription import Subscription
from godwit.impairment import LinkSettings
from godwit.limits import KIB
from godwit.native.effects import ConfirmRecord, SendRecord
from godwit.native.subscriber_channel import NativeOutbound
from godwit.server.server import Server
from godwit_sim.checkers import ViolationError
from godwit_sim.network import Trace
from godwit_sim.worlds import WORLDS, run_seed
from godwit_sim.worlds.broker import run_broker
from godwit_sim.worlds.broker_plan import BrokerPlan, Fault, FaultKind, HostilePlan, ReadingPlan


@pytest.mark.parametrize("seed", range(12))
def test_seeds_pass(seed: int) -> None:
    assert run_seed("broker", seed).violation is None


def test_the_quiet_plan_delivers_everything() -> None:
    world = run(PLAN)
    first, other, second = world.checkers.streams
    sent = len(world.checkers.published.publications)
    assert first.received == sent
    assert second.retained.keys() == {"home/c"}
    assert other.received == sum(one.topic == "home/b" for one in world.checkers.published.publications)
    assert [stream.missed for stream in world.checkers.streams] == [0, 0, 0]
    assert "3 clients" in world.summary()


def test_who_dies_goes_on_where_it_stopped_and_leaves_its_will() -> None:
    world = run(DEATH)
    assert len(world.checkers.streams) == 5, "two of them in both runs, one later"
    assert sum(one.is_will for one in world.checkers.log.messages) == 1


def test_a_slow_reader_gets_a_report_of_missed_messages() -> None:
    world = run(SLOW)
    reader, other = world.checkers.streams
    assert reader.missed > 0
    assert reader.received + reader.missed == other.received


def test_a_slow_reader_costs_no_more_than_its_window() -> None:
    sender = client("sender", publications=tuple(messages("home/b", 1, 90, 15_000)))
    world = run(replace(SLOW, clients=(sender, *SLOW.clients[1:])))
    assert sum(len(one.payload) for one in world.checkers.log.messages) > 1300 * KIB
    assert world.memory.most_bytes["server0"] < 4 * 64 * KIB


def test_a_quiet_subscriber_misses_no_messages_of_others() -> None:
    """Its client knows only its last message, which is long deleted when it reconnects."""
    world = run(STALE)
    quiet, _ = world.checkers.streams
    assert (quiet.received, quiet.missed) == (2, 0), "one of them when all is well again"
    assert world.store.first_offset > 30


def test_publishers_wait_for_a_reader_on_a_slow_line() -> None:
    line = LinkSettings(delay_s=0.005, bandwidth_bits_per_s=2e6, queue_packets=50)
    sender = client("sender", publications=tuple(messages("home/b", 1, 60, 15_000)))
    reader = replace(READER, subscriptions=READER.subscriptions[:1], down=line)
    world = run(replace(SLOW, clients=(sender, reader), hold_back_s=10.0))
    (stream,) = world.checkers.streams
    assert (stream.missed, stream.received) == (0, 61)
    assert world.store.first_offset > 0, "the ring has turned over"


@pytest.mark.parametrize("kind", ["partition", "rebind", "pause", "client_dies", "client_closes"])
def test_single_faults(kind: FaultKind) -> None:
    run(replace(PLAN, faults=tuple(Fault(0.5, kind, number, 0.4, fresh=number == 2) for number in range(3))))


def test_a_long_partition() -> None:
    run(LOST)


def test_two_listeners_share_a_broker() -> None:
    clients = (PLAN.clients[0], replace(READER, listener=1), OTHER)
    run(replace(PLAN, server_hosts=PLAN.server_hosts * 2, clients=clients))


def test_a_hostile_client_has_no_effect_on_others() -> None:
    kinds: Any = ("junk", "flood", "no_login", "never_reads", "liar", "requests", "opens")
    world = run(replace(PLAN, hostile=HostilePlan(kinds, 100, 2.0)))
    assert world.hostile is not None
    assert world.hostile.disconnections > 3


def test_the_same_seed_is_the_same_world_in_any_process() -> None:
    code = "from godwit_sim.worlds import run_seed; print(*(run_seed('broker', seed).digest for seed in (3, 4)))"
    here = [run_seed("broker", seed).digest for seed in (3, 4)]
    assert here[0] != here[1]
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={"PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        assert done.stdout.split() == here


def test_reading_the_trace_does_not_change_it() -> None:
    lines: list[str] = []
    assert run_seed("broker", 3, Trace(lines.append)).digest == run_seed("broker", 3).digest
    assert len(lines) > 100


def test_the_registry() -> None:
    assert "broker" in WORLDS


# -- planted faults: an incorrect server ------------------------------------------------------------------------------


class Spoils(Server):
    """Change the tenth record for a subscriber."""

    count = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._apply[SendRecord] = self._send

    def _send(self, effect: SendRecord) -> None:
        self.count += effect.channel > 0 and effect.reliable
        if self.count == 10 and effect.channel and effect.reliable:
            self.count += 1
            effect = self.spoil(effect)
        self.native._send(effect)

    def spoil(self, effect: SendRecord) -> SendRecord:
        return msgspec.structs.replace(effect, body=effect.body[:-1] + bytes((effect.body[-1] ^ 1,)))


class TellsTooMany(Server):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._apply[ConfirmRecord] = self._confirm

    def _confirm(self, effect: ConfirmRecord) -> None:
        self.native._confirm(msgspec.structs.replace(effect, reached=effect.reached + 1))


class ConfirmsWhatItLoses(Server):
    count = 0

    def _append(self, effect: Append) -> None:
        self.count += 1
        if self.count == 5:
            effect = Append([])
        super()._append(effect)


class Leaks(Server):
    @property
    def buffered_bytes(self) -> int:
        return 2**40


class Raises(Server):
    def run_turn(self) -> Any:
        raise ZeroDivisionError("on purpose")


class Sleeps(Server):
    """Stop after a while."""

    def run_turn(self) -> Any:
        return super().run_turn() if self._now < 6.0 else []


@pytest.mark.parametrize(
    ("server", "error", "text"),
    [
        (Spoils, ViolationError, "stream: .*never published"),
        (TellsTooMany, ViolationError, "reached: .*must have been"),
        (ConfirmsWhatItLoses, ViolationError, "log: .*(is not in the log|out of order)"),
        (Leaks, ViolationError, "memory: "),
        (Raises, ZeroDivisionError, "on purpose"),
        (Sleeps, ViolationError, "(timers|liveness): "),
    ],
)
def test_a_broken_server_is_caught(server: type[Server], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run(PLAN, server)


def test_a_violation_is_reported() -> None:
    for server, text in ((Raises, "an exception escaped"), (Leaks, "memory")):
        violation, summary = run_broker(0, Trace(), server)
        assert violation is not None
        assert text in violation
        assert "clients" in summary


# -- planted faults: an incorrect part --------------------------------------------------------------------------------


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def silent(_: Callable[..., None]) -> Callable[..., None]:
    """Send no gaps."""
    return nothing


def belittled(gap: Callable[..., None]) -> Callable[..., None]:
    """Send gaps with too small a count."""
    return lambda self, count, next_offset, below: gap(self, count - 1, next_offset, below)


def early(on_gone: Callable[..., None]) -> Callable[..., None]:
    """Treat every close as a lost connection."""
    return lambda self, link, now_us, was_expected, reason: on_gone(
        self, link, now_us, was_expected=False, reason=reason
    )


def late(on_gone: Callable[..., None]) -> Callable[..., None]:
    """Treat every lost connection as a close."""
    return lambda self, link, now_us, was_expected, reason: on_gone(
        self, link, now_us, was_expected=True, reason=reason
    )


def forgetful(detach: Callable[..., None]) -> Callable[..., None]:
    """Resume every session at the end of the log."""

    def wrong(self: Delivery, feed: Any) -> None:
        detach(self, feed)
        feed.resume_at = self.next_offset

    return wrong


def hasty(take: Callable[..., Any]) -> Callable[..., Any]:
    """Confirm messages when they are handed out."""

    def wrong(self: Subscription, *times: Any) -> Any:
        messages = take(self, *times)
        if self._taken is not None:
            self._confirm(self._taken)
            self._taken = None
        return messages

    return wrong


def twice(take: Callable[..., Any]) -> Callable[..., Any]:
    """Deliver every message twice."""
    return lambda *given: [message for message in found for _ in range(2)] if (found := take(*given)) else found


@pytest.mark.parametrize(
    ("plan", "where", "name", "wrong", "text"),
    [
        (PLAN, Catalogue, "retain_last", lambda _: lambda *_: True, "(retained|liveness): .*(never came|is retained)"),
        (PLAN, Admission, "on_gone", early, "will: "),
        (DEATH, Admission, "on_gone", late, "(will|liveness): .*will of"),
        (DEATH, Delivery, "detach", forgetful, "(stream|liveness): .*(skipped|waits for offsets)"),
        (LOST, Identities, "record_sequences", lambda _: lambda *_: 0, "log: .*already"),
        (SLOW, NativeOutbound, "gap", silent, "(stream|liveness): .*(skipped|waits for offsets)"),
        (SLOW, NativeOutbound, "gap", belittled, "stream: .*reported missing"),
        (
            STALE,
            BrokerSubscription,
            "is_resumed_from",
            lambda _: lambda *_: False,
            "stream: .*none that matches it is gone",
        ),
        (PLAN, Subscription, "take", twice, "stream: .*(behind offset|came twice)"),
        (PLAN, ClientProtocol, "next_timer", lambda _: nothing, "timers: "),
    ],
)
def test_a_broken_part_is_caught(
    plan: BrokerPlan, where: Any, name: str, wrong: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong(getattr(where, name)))
    with pytest.raises(ViolationError, match=text):
        run(plan)


def test_a_record_that_is_confirmed_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The application dies while it processes a record: it must be delivered again."""
    sender = client("sender", publications=tuple(messages("home/b", 1)))
    reader = replace(READER, reading=ReadingPlan(0.2), subscriptions=READER.subscriptions[:1])
    plan = replace(PLAN, clients=(sender, reader), faults=(Fault(1.05, "client_dies", 1, 0.4),))
    run(plan)
    monkeypatch.setattr(Subscription, "take", hasty(Subscription.take))
    with pytest.raises(ViolationError, match=r"(stream|liveness): .*(skipped|waits for offsets)"):
        run(plan)
