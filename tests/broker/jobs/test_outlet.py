"""The channel towards a client: opened late, bounded by its window."""

from __future__ import annotations

from tests.broker.world import World

from godwit.broker.effects import Effect
from godwit.broker.jobs.outlet import Outlet
from godwit.limits import MAX_JOB_PAYLOAD_BYTES, RECORD_COST_BYTES, WORK_WINDOW_BYTES
from godwit.native.effects import OpenChannel, SendRecord
from godwit.native.peer import NativePeer
from godwit.wire.control import Work, decode_control
from godwit.wire.work import Lease, LeasedTask, Revoke, decode_from_broker

REVOKE = Revoke(tasks=[(1, 0, 1)])


def outlet() -> tuple[Outlet, list[Effect], NativePeer]:
    link = NativePeer(World().peer(), 1000, [])  # type: ignore[arg-type]
    effects: list[Effect] = []
    return Outlet(link, effects), effects, link


def test_it_is_opened_with_the_first_group() -> None:
    made, effects, link = outlet()
    assert (link.take_channel(), link.take_channel()) == (1, 2)
    assert made.channel == 0
    made.send(REVOKE)
    made.send(REVOKE)
    assert made.channel == 3
    opened, first, *groups = effects
    assert opened == OpenChannel(link.connection, 3)
    assert isinstance(first, SendRecord)
    assert decode_control(first.body) == Work()
    assert [decode_from_broker(group.body)[0] for group in groups if isinstance(group, SendRecord)] == [REVOKE] * 2
    assert link.take_channel() == 4


def test_it_has_room_while_less_than_the_window_is_unconfirmed() -> None:
    made, _, _ = outlet()
    payload = bytes(MAX_JOB_PAYLOAD_BYTES)
    big = Lease(tasks=[LeasedTask(task=(1, 0, 1), of_kind="k", controller="c", size=len(payload))])
    rooms: list[bool] = []
    made.send(REVOKE)
    rooms.append(made.has_room)
    made.send(big, [payload])
    rooms.append(made.has_room)
    for record in (1, 2, 2):
        made.on_confirm(record)
        rooms.append(made.has_room)
    assert rooms == [True, False, False, True, True]
    assert made._unconfirmed_bytes == 0


def test_small_records_cost_something_too() -> None:
    made, effects, _ = outlet()
    while made.has_room:
        made.send(REVOKE)
    sent = [effect for effect in effects if isinstance(effect, SendRecord)]
    cost_bytes = sum(len(effect.body) + RECORD_COST_BYTES for effect in sent)
    assert WORK_WINDOW_BYTES <= cost_bytes < WORK_WINDOW_BYTES + 1000
    made.on_confirm(len(sent) - 1)
    assert made._unconfirmed_bytes == 0
