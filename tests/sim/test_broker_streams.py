"""The checker of a subscription accepts correct deliveries and catches each planted fault."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.broker_models import Models, got

from godwit_sim.broker_log_model import Publication
from godwit_sim.broker_streams import Start, Stream
from godwit_sim.checkers import ViolationError


def stream(models: Models, *filters: str, lowest: int = 0, due: int | None = 0) -> Stream:
    return Stream("s", filters or ("a/#",), models.published, models.log, Start(lowest, due))


def take(made: Stream, *publications: Publication, **changes: Any) -> None:
    for publication in publications:
        made.took([got(publication, **changes)])


def test_everything_in_order_is_right() -> None:
    models = Models()
    made = stream(models)
    messages = [models.logged(qos=qos) for qos in (1, 2, 1)]
    models.logged("elsewhere")
    assert len(made.outstanding()) == 3
    take(made, *messages)
    take(made, models.logged())
    made.complete()
    assert made.received == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"offset": None}, "no offset"),
        ({"offset": 1}, "came with offset 1"),
        ({"payload": b"x"}, "never published"),
        ({"retained": True}, "not published so"),
    ],
)
def test_a_changed_message_is_caught(changes: dict[str, Any], complaint: str) -> None:
    models = Models()
    with pytest.raises(ViolationError, match=complaint):
        take(stream(models), models.logged(), **changes)


def test_a_message_that_does_not_match_is_caught() -> None:
    models = Models()
    with pytest.raises(ViolationError, match="matches none"):
        take(stream(models), models.logged("b"))


@pytest.mark.parametrize("back", [0, 1])
def test_offsets_rise(back: int) -> None:
    models = Models()
    messages = [models.logged(), models.logged()]
    made = stream(models)
    take(made, *messages)
    with pytest.raises(ViolationError, match="behind offset 1"):
        take(made, messages[back])


def test_nothing_is_passed_over_in_silence() -> None:
    models = Models()
    messages = [models.logged() for _ in range(3)]
    made = stream(models)
    take(made, messages[0])
    with pytest.raises(ViolationError, match="1 messages before offset 2 were skipped"):
        take(made, messages[2])


def test_nothing_is_passed_over_at_the_start() -> None:
    models = Models()
    messages = [models.logged() for _ in range(2)]
    with pytest.raises(ViolationError, match="skipped"):
        take(stream(models), messages[1])


def test_messages_that_do_not_match_are_skipped() -> None:
    models = Models()
    first, _, last = models.logged(), models.logged("b"), models.logged()
    made = stream(models)
    take(made, first, last)
    made.complete()


def test_messages_reported_missed_may_be_missing() -> None:
    models = Models()
    messages = [models.logged() for _ in range(4)]
    models.log.deleted_below = 3
    made = stream(models)
    take(made, messages[0])
    made.notified_missed(2, 3)
    assert made.outstanding() == [3]
    take(made, messages[3])
    assert made.missed == 2


@pytest.mark.parametrize("reported", [0, 1, 3])
def test_missing_messages_are_reported_exactly(reported: int) -> None:
    models = Models()
    first = models.logged()
    for topic in ("a/b", "b", "a/b", "a/b"):
        models.logged(topic)
    models.log.deleted_below = 5
    made = stream(models)
    take(made, first)
    with pytest.raises(ViolationError, match=f"{reported} messages before offset 4 are reported missing: 2 are"):
        made.notified_missed(reported, 4)


def test_after_a_reconnect_the_count_is_not_exact() -> None:
    models = Models()
    for topic in ("a/b", "b", "a/b", "a/b"):
        models.logged(topic)
    models.log.deleted_below = 4
    for reported in (2, 3):
        made = stream(models)
        made.disconnected()
        made.notified_missed(reported, 3)
        Stream("s", ["a/#"], models.published, models.log, Start(0, 0, is_approximate=True)).notified_missed(
            reported, 3
        )
    for reported in (1, 4):
        made = stream(models)
        made.disconnected()
        with pytest.raises(ViolationError, match="2 are"):
            made.notified_missed(reported, 3)


def test_available_messages_must_not_be_reported_missed() -> None:
    models = Models()
    messages = [models.logged() for _ in range(3)]
    models.log.deleted_below = 1
    with pytest.raises(ViolationError, match="offset 1 is reported missing, and is still in the log"):
        stream(models).notified_missed(2, 2)
    made = stream(models)
    made.disconnected()
    take(made, *messages)
    with pytest.raises(ViolationError, match="1 messages"):
        made.notified_missed(1, 2)


def test_damaged_offsets_are_reported_with_unknown_topics() -> None:
    models = Models()
    first, last = models.logged(), [models.logged(topic) for topic in ("a/b", "elsewhere", "a/b", "a/b")][-1]
    models.log.damaged.update((1, 2))
    for reported in (1, 2):
        made = stream(models)
        take(made, first)
        made.notified_missed(reported, 3)
    for reported, next_offset in ((3, 3), (3, 4)):
        made = stream(models)
        take(made, first)
        with pytest.raises(ViolationError, match=r"are reported missing|still in the log"):
            made.notified_missed(reported, next_offset)
    made = stream(models)
    take(made, first)
    with pytest.raises(ViolationError, match="skipped"):
        take(made, last)


def test_a_quiet_subscription_gets_no_report_of_messages_for_others() -> None:
    models = Models()
    made = Stream("s", ("a/#",), models.published, models.log, Start(0, 0), is_quiet=True)
    first = models.logged()
    take(made, first)
    for _ in range(3):
        models.logged("b")
    made.disconnected()
    models.log.damaged.add(2)
    made.notified_missed(1, 3)  # its topic is unknown
    models.log.damaged.clear()
    with pytest.raises(ViolationError, match="none that matches it is gone"):
        made.notified_missed(1, 4)
    models.log.deleted_below = 1
    made.notified_missed(1, 4)  # a consumed message is deleted: the broker may not know that it was consumed


def test_the_next_run_resumes_after_a_gap() -> None:
    models = Models()
    for _ in range(3):
        models.logged()
    models.log.deleted_below = 2
    made = stream(models)
    made.notified_missed(2, 2)
    assert made.resume_offset == 2


def test_a_start_at_latest_lies_between_question_and_answer() -> None:
    models = Models()
    before, between, also = models.logged(), models.logged(), models.logged()
    made = stream(models, lowest=1, due=None)
    assert made.outstanding() == []
    made.answered()
    after = models.logged()
    assert made.outstanding() == [3]
    take(made, also, after)  # it began at `also`
    for early in (before, between):
        with pytest.raises(ViolationError, match="offset"):
            take(made, early)
    late = stream(models, lowest=1, due=None)
    with pytest.raises(ViolationError, match="it begins at 1"):
        take(late, before)
    other = stream(models, lowest=1, due=3)
    models.logged()
    with pytest.raises(ViolationError, match="skipped"):
        take(other, models.logged())


def test_where_the_next_run_resumes() -> None:
    models = Models()
    messages = [models.logged() for _ in range(3)]
    unanswered, answered = (stream(models, lowest=0, due=None) for _ in range(2))
    answered.answered()
    assert (unanswered.resume_offset, answered.resume_offset) == (None, 3)
    made = stream(models)
    made.took([got(messages[0]), got(messages[1])])
    assert made.resume_offset == 0, "the application may have died over them"
    made.took([got(messages[2])])
    assert made.resume_offset == 2
    made.finished()
    assert made.resume_offset == 3


def test_nothing_comes_after_the_end() -> None:
    models = Models()
    made = stream(models)
    message = models.logged()
    made.ended()
    assert made.outstanding() == []
    with pytest.raises(ViolationError, match="after its end"):
        take(made, message)


def test_missing_deliveries_are_caught() -> None:
    models = Models()
    made = stream(models)
    models.logged()
    with pytest.raises(ViolationError, match="1 messages never came"):
        made.complete()


def test_qos_0_at_most_once_and_in_order() -> None:
    models = Models()
    messages = [models.publish(qos=0) for _ in range(4)]
    made = stream(models)
    take(made, messages[0], messages[2])
    with pytest.raises(ViolationError, match="came twice"):
        take(made, messages[2])
    with pytest.raises(ViolationError, match="out of order"):
        take(made, messages[1])
    with pytest.raises(ViolationError, match="is in no log"):
        take(made, messages[3], offset=3)
    assert made.live_received == 2


def test_a_will_of_qos_0_may_come_again() -> None:
    models = Models()
    will = models.published.add_will("bob", "a/b", b"dead", 0.0, qos=0)
    take(stream(models), will, will)


def test_retained_messages_come_once_and_first() -> None:
    models = Models()
    old, newer = (models.logged(retain=True) for _ in range(2))
    made = stream(models, due=None, lowest=1)
    take(made, old, retained=True)  # its offset lies before the start
    assert made.retained == {"a/b": old}
    with pytest.raises(ViolationError, match="one for a topic"):
        take(made, newer, retained=True)
    made.disconnected()
    take(made, newer, retained=True)
    made = stream(models, due=None)
    take(made, newer)
    with pytest.raises(ViolationError, match="behind a newer"):
        take(made, old, retained=True)


def test_a_retained_message_of_qos_0_comes_live_or_as_retained() -> None:
    models = Models()
    message, other = models.publish(qos=0, retain=True), models.publish("a/c", qos=0, retain=True)
    made = stream(models)
    take(made, message)
    take(made, other, retained=True)
    with pytest.raises(ViolationError, match="came twice"):
        take(made, message, retained=True)
    with pytest.raises(ViolationError, match="came twice"):
        take(made, other)


# -- an older copy of the log is restored -----------------------------------------------------------------------------


def restored(read: int = 4) -> tuple[Models, Stream, list[Publication], list[Publication]]:
    """Return a stream that has read some of four messages; then a copy with two is restored and gets three others."""
    models = Models()
    made = stream(models)
    old = [models.logged(), models.logged()]
    backup = models.log.copy()
    old += [models.logged(), models.logged()]
    take(made, *old[:read])
    models.log.restore(backup)
    return models, made, old, [models.logged(), models.logged(), models.logged()]


def test_a_notified_subscriber_goes_back() -> None:
    _, made, _, new = restored()
    made.notified_replaced(2, 4)
    assert len(made.outstanding()) == 3
    take(made, *new)
    made.complete()


def test_who_had_read_nothing_that_is_lost_goes_on() -> None:
    _, made, _, new = restored(2)
    take(made, *new)
    made.complete()


def test_messages_in_flight_may_arrive_before() -> None:
    _, made, old, new = restored(1)
    take(made, old[1])
    take(made, old[2], offset=2)
    made.notified_replaced(2, 3)
    take(made, *new)
    made.complete()


@pytest.mark.parametrize("position", [(1, 4), (3, 4), (2, 5)])
def test_a_wrong_place_to_go_back_to_is_caught(position: tuple[int, int]) -> None:
    _, made, _, _ = restored()
    with pytest.raises(ViolationError, match="up to 2 the log is the same"):
        made.notified_replaced(*position)


def test_going_back_without_a_reason_is_caught() -> None:
    _, made, _, _ = restored(2)
    with pytest.raises(ViolationError, match="resuming at 1"):
        made.notified_replaced(1, 2)


def test_resuming_without_a_report_is_caught() -> None:
    _, made, _, new = restored()
    with pytest.raises(ViolationError, match="from 2 on than it read up to 4, and that was not reported"):
        take(made, new[2])


def test_a_former_message_behind_a_new_one_is_caught() -> None:
    _, made, old, new = restored(2)
    take(made, new[0])
    with pytest.raises(ViolationError, match="came with offset 3"):
        take(made, old[3], offset=3)
