"""`godwit sub`: print messages as they arrive, or save files."""

from __future__ import annotations

import asyncio
import math
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from godwit.cli.connection import (
    DEFAULT_BROKER,
    ArqOption,
    BrokerOption,
    EndlessTimeoutOption,
    NameOption,
    SecretOption,
    SessionExpiryOption,
    Target,
    WillOptions,
    WillPayloadOption,
    WillQosOption,
    WillRetainOption,
    WillTopicOption,
    check_qos,
    check_session_expiry,
    connected,
    guarded,
    print_notice,
    run,
)
from godwit.cli.text import count as counted
from godwit.cli.text import parse_position, safe, safe_json
from godwit.errors import GodwitError, TopicError, UsageError
from godwit.limits import MAX_SESSION_EXPIRY_S
from godwit.wire.control_base import Code
from godwit.wire.filters import matches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from godwit.cli.message_lines import MessageFormatter, Style
    from godwit.client.message import Message
    from godwit.client.subscription import Start
    from godwit.net.client import AsyncClient
    from godwit.net.file_inbox import ReceivedFile
    from godwit.net.subscription import AsyncSubscription


MAX_SIZE: Final = "1GiB"
MAX_TOTAL: Final = "10GiB"
MAX_SIZE_DIGITS: Final = 18
END_POLL_S: Final = 0.1
"""Pause before the broker is asked again whether the end of the log is reached."""
MAX_WAIT_S: Final = 7 * 86400.0
MAX_QOS: Final = 2


def register(root: typer.Typer) -> None:
    """Add `godwit sub`."""
    root.command("sub", epilog="Example: godwit sub 'home/#' --from 1h --no-follow --format '%I %t %p'")(sub)


@dataclass(frozen=True)
class SubscribePlan:
    """What to receive, and when to end."""

    filters: list[str]
    start: Start = None
    since: datetime | None = None
    back: int | None = None
    """Start this many messages before the end of the log."""
    cursor: str | None = None
    group: str | None = None
    count: int | None = None
    wait_s: float | None = None
    follows: bool = True
    """Whether to continue at the end of the log."""
    exclude: tuple[str, ...] = ()
    retained: bool | None = None
    """True: only messages that were stored for new subscribers. False: only others."""
    qos: tuple[int, ...] = ()
    """Highest QoS of each filter; empty: that of the messages."""

    def require_count(self, number: int, noun: str) -> None:
        """Raise GodwitError if the command ended with fewer messages or files than --count asks for."""
        if self.count is not None and number < self.count:
            within = "before the end of the log" if self.wait_s is None else f"within {self.wait_s:g} s"
            raise GodwitError(f"{number:,} of {counted(self.count, noun)} arrived {within}")

    def select(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages to print."""
        found = [one for one in messages if self.retained is None or one.retained is self.retained]
        if self.exclude:
            found = [one for one in found if not any(matches(filter, one.topic) for filter in self.exclude)]
        if self.qos:
            found = [one if one.qos <= (most := self._qos_of(one)) else _with_qos(one, most) for one in found]
        return found

    def _qos_of(self, message: Message) -> int:
        """Return the highest QoS of the filters that match a message."""
        pairs = zip(self.filters, self.qos, strict=True)
        return max((qos for filter, qos in pairs if matches(filter, message.topic)), default=MAX_QOS)

    def by_session(self) -> list[SubscribePlan]:
        """Divide the plan into those filters of which the broker stores a position, and those of QoS 0."""
        if not self.qos:
            return [self]
        plans = []
        for is_stored in (True, False):
            pairs = [pair for pair in zip(self.filters, self.qos, strict=True) if bool(pair[1]) is is_stored]
            if pairs:
                plans.append(replace(self, filters=[one for one, _ in pairs], qos=tuple(qos for _, qos in pairs)))
        return plans

    @property
    def is_kept(self) -> bool:
        """Whether the broker stores the position for a client that comes back by its name."""
        return not self.qos or any(self.qos)


def sub(
    filters: Annotated[
        list[str],
        typer.Argument(metavar="FILTER...", help="Topics; + matches one level, # the rest, * one or more levels."),
    ],
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", help="End after this many messages or files.", show_default="no limit"
        ),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            "-W",
            metavar="SECONDS",
            help="End after this time; with --count the exit code is then 1.",
            show_default="no limit",
        ),
    ] = None,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="End at the end of the log.")] = False,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            help="Start at earliest, latest, an offset, -N (N messages of the log before its end), an age such as 5m, "
            "or a time such as 2025-03-01T12:00 (UTC).",
            show_default="latest",
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Continue after the last printed message; the broker stores that position for a week under this name.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Join this consumer group: each message goes to one member. --from is for a new group.",
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", "-T", metavar="FILTER", help="Leave out topics that match; may be repeated."),
    ] = None,
    retained_only: Annotated[
        bool, typer.Option("--retained-only", help="Print the messages retained for new subscribers, and end.")
    ] = False,
    no_retained: Annotated[
        bool, typer.Option("--no-retained", "-R", help="Leave out messages retained for new subscribers.")
    ] = False,
    qos: Annotated[
        list[str] | None,
        typer.Option(
            "--qos",
            metavar="0|1|2",
            help="Highest QoS of the messages: once for all filters, or once for each, in their order. With 0 the "
            "broker stores no position, so a client that comes back misses the messages in between.",
            show_default="as published",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of `topic: payload`.")
    ] = False,
    payload_only: Annotated[bool, typer.Option("--payload-only", help="Print only the payload, one per line.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes of the payloads, and nothing else.")] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-F",
            metavar="FORMAT",
            help="Print this for each message: %t topic, %p payload, %x payload in hex, %l its length, %q QoS, "
            "%r 1 if retained, %o offset, %n publisher, %I time of arrival, %U that time in seconds since 1970, "
            "%P headers, %C content type, %R reply topic, %D correlation data in hex, %E time of expiry, "
            "%j JSON, %% a percent sign, \\n and \\t.",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Receive files into this folder and print their paths.")
    ] = None,
    max_size: Annotated[
        str, typer.Option("--max-size", metavar="SIZE", help="With --save: size of the largest file to accept.")
    ] = MAX_SIZE,
    max_total: Annotated[
        str,
        typer.Option(
            "--max-total",
            metavar="SIZE",
            help="With --save: end when the received files in the folder exceed this size.",
        ),
    ] = MAX_TOTAL,
    will_topic: WillTopicOption = None,
    will_payload: WillPayloadOption = None,
    will_qos: WillQosOption = "1",
    will_retain: WillRetainOption = False,
    session_expiry: SessionExpiryOption = None,
    broker: BrokerOption = DEFAULT_BROKER,
    name: NameOption = None,
    secret_file: SecretOption = None,
    arq: ArqOption = None,
    timeout: EndlessTimeoutOption = None,
) -> None:
    """Print messages as they arrive, as `topic: payload`, one per line.

    Characters that a terminal would act upon are printed as escapes. --json keeps every payload exactly, as
    `payload_base64` where it is not UTF-8. The command waits for a broker that is not running yet and reconnects when
    the connection is lost. Missed messages are reported on stderr.
    """
    from godwit.broker.topics import check_filter
    from godwit.cli.message_lines import MessageFormatter

    if count is not None and count < 1:
        raise UsageError(f"--count {count} is out of range; give a number from 1 upward, or leave it out")
    if wait is not None and not 0 < wait <= MAX_WAIT_S:
        raise UsageError(f"--wait {wait:g} is out of range; give seconds above 0, up to {MAX_WAIT_S:,.0f}")
    if as_json + payload_only + raw + (form is not None) > 1:
        raise UsageError("--json, --payload-only, --raw and --format exclude each other: give one of them")
    if retained_only and (no_retained or start is not None or cursor is not None):
        raise UsageError("--retained-only does not accept --no-retained, --from or --cursor: leave them out")
    start_at, since, back = parse_start(start)
    limits_of_qos = parse_filter_qos(qos or [], len(filters))
    if cursor is not None and 0 in limits_of_qos:
        raise UsageError("--qos 0 stores no position and --cursor does: leave one of them out")
    if group is not None and (cursor is not None or qos or retained_only or save is not None):
        raise UsageError("a group has a position of its own: leave out --cursor, --qos, --retained-only and --save")
    for filter in exclude or ():
        check_filter(filter)
    target = Target.of(broker, name, secret_file, wait if timeout is None else timeout, arq)
    if session_expiry is not None and name is None and cursor is None:
        raise UsageError("only a client with a name has a session that remains: add --name to --session-expiry")
    target = replace(
        target,
        will=WillOptions(will_topic, will_payload, will_qos, will_retain).will(),
        session_expiry_s=check_session_expiry(session_expiry),
    )
    if cursor is not None:  # a cursor belongs to a named client; without a name it would end with the connection
        expiry_s = MAX_SESSION_EXPIRY_S if session_expiry is None else target.session_expiry_s
        target = replace(target, name=name or cursor, session_expiry_s=expiry_s, is_cursor=not name)
    plan = SubscribePlan(
        filters,
        start_at,
        since,
        back,
        cursor,
        group,
        count,
        wait,
        follows=not (no_follow or retained_only),
        exclude=tuple(exclude or ()),
        retained=True if retained_only else False if no_retained else None,
        qos=limits_of_qos,
    )
    if save is not None:
        if (
            cursor is not None
            or qos
            or not plan.follows
            or payload_only
            or raw
            or form is not None
            or exclude
            or no_retained
        ):
            raise UsageError("--save receives files: of the options for messages it accepts --from, --count and --wait")
        limits = parse_size("--max-size", max_size), parse_size("--max-total", max_total)
        run(_save(target, plan, save, limits, as_json))
    else:
        for option, value, default in (("--max-size", max_size, MAX_SIZE), ("--max-total", max_total, MAX_TOTAL)):
            if value != default:
                raise UsageError(f"{option} limits received files: add --save, or leave it out")
        style: Style = "json" if as_json else "payload" if payload_only else "raw" if raw else "text"
        run(_print(target, plan, MessageFormatter(style, form)))


def parse_start(text: str | None) -> tuple[Start, datetime | None, int | None]:
    """Return the position, or the time, or the number of messages before the end of the log to start at.

    Raises:
        UsageError: The text has another form.
    """
    if text is None:
        return None, None, None
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit() and len(text) <= MAX_SIZE_DIGITS:
        return None, None, int(text[1:])
    if (age := parse_age(text)) is not None:
        return None, datetime.now(UTC) - age, None
    position = parse_position(text)
    if position is None:
        raise UsageError(
            f"--from {text!r} is not a position; write latest, earliest, an offset, -10, an age such as 5m, or a time "
            "such as 2025-03-01T12:00"
        )
    return (None, position, None) if isinstance(position, datetime) else (position, None, None)


def parse_filter_qos(texts: Sequence[str], filters: int) -> tuple[int, ...]:
    """Return the highest QoS of each filter, or an empty tuple if none is given.

    Raises:
        UsageError: A text is not a QoS, or their number is neither 1 nor that of the filters.
    """
    found = tuple(check_qos(text) for text in texts)
    if len(found) not in (0, 1, filters):
        raise UsageError(
            f"--qos is given {len(found)} times for {counted(filters, 'filter')}: give it once, or once for each filter"
        )
    return found * filters if len(found) == 1 else found


def _with_qos(message: Message, qos: int) -> Message:
    import msgspec

    return msgspec.structs.replace(message, qos=qos)


def parse_age(text: str) -> timedelta | None:
    """Return the duration that a text such as 90s, 5m, 2h, 1d or 1w names, or None for another text."""
    match = _AGE.fullmatch(text)
    return None if match is None else timedelta(**{_AGE_UNITS[match[2]]: float(match[1])})


_AGE_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([smhdw])")


def parse_size(option: str, text: str) -> int:
    """Return the number of bytes that a size names, with or without a unit.

    Raises:
        UsageError: The text is not a size.
    """
    from godwit.server.configuration_values import SIZES_BYTES, WITH_UNIT

    match = WITH_UNIT.fullmatch(text)
    if match is not None and match[2] in SIZES_BYTES:
        return int(float(match[1]) * SIZES_BYTES[match[2]])
    if text.isascii() and text.isdigit() and len(text) <= MAX_SIZE_DIGITS:
        return int(text)
    raise UsageError(f"{option} {text!r} is not a size; write it as 500MB, 10GiB or a number of bytes")


async def _print(target: Target, plan: SubscribePlan, lines: MessageFormatter) -> None:
    from godwit.cli.streams import Output

    output = Output()
    printed = 0
    printing = asyncio.Lock()

    async def show(client: AsyncClient, plan: SubscribePlan) -> None:
        nonlocal printed
        # `keep`: the subscription ends with the session, so a named client continues when it connects again.
        subscription = client.subscribe(
            *plan.filters,
            start=plan.start if plan.back is None else max(await end_of_log(client, plan.filters) - plan.back, 0),
            since=plan.since,
            cursor=plan.cursor,
            on_gap=lambda missed: _report_gap(missed, subscription.replaced),
            keep=plan.is_kept if plan.group is None else None,
            group=plan.group,
        )
        async with subscription as messages:
            position = messages.position
            is_plain = plan.follows and plan.wait_s is None
            async for batch in _lists(messages, plan) if is_plain else _batches(client, messages, plan):
                wanted = plan.select(batch)
                async with printing:
                    shown = wanted if plan.count is None else wanted[: plan.count - printed]
                    if shown:
                        await output.write(lines.render(shown))
                    printed += len(shown)
                # Messages of the batch beyond --count were not printed: they are delivered again the next time.
                is_whole = len(shown) == len(wanted)
                position = messages.position if is_whole else position_after(shown, position)
                if plan.cursor is not None:
                    await messages.commit(position)
                if printed == plan.count:
                    break
            await messages.close(position)

    async def show_all(client: AsyncClient) -> None:
        """Show all parts of the plan until they end, or until --count is reached."""
        running = {asyncio.ensure_future(show(client, part)) for part in plan.by_session()}
        try:
            while running and printed != plan.count:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()  # raises its exception
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async with connected(target) as client:
        try:
            parts = plan.by_session()
            work = show(client, parts[0]) if len(parts) == 1 else show_all(client)
            await guarded(work, output.until_closed())
        except TopicError as error:
            if error.code != Code.NO_SUCH_TOPIC:
                raise
            raise TopicError(error.code, f"{error}: publish to it first, or create it (godwit topics create)") from None
    plan.require_count(printed, "message")


async def end_of_log(client: AsyncClient, filters: Sequence[str]) -> int:
    """Return the offset behind the last message of the log."""
    async with client.subscribe(*filters, start="latest", keep=False) as messages:
        return messages.position


async def _batches(
    client: AsyncClient, messages: AsyncSubscription, plan: SubscribePlan
) -> AsyncIterator[list[Message]]:
    """Yield the messages in lists, until the time of the plan is over or without `follows` the log ends."""
    source = _lists(messages, plan)
    now = asyncio.get_running_loop().time
    ends_at = math.inf if plan.wait_s is None else now() + plan.wait_s
    coming: asyncio.Future[list[Message]] = asyncio.ensure_future(anext(source))
    try:
        while (left_s := ends_at - now()) > 0:
            poll_s = None if plan.follows else END_POLL_S
            done, _ = await asyncio.wait(
                [coming], timeout=poll_s if math.isinf(left_s) else min(left_s, poll_s or left_s)
            )
            if done:
                yield coming.result()
                coming = asyncio.ensure_future(anext(source))
            elif not plan.follows and await _is_at_end(client, plan) and not coming.done():
                return
    finally:
        coming.cancel()
        with suppress(asyncio.CancelledError, GodwitError):
            await coming


async def _lists(messages: AsyncSubscription, plan: SubscribePlan) -> AsyncIterator[list[Message]]:
    """Yield the messages in lists; one by one for a group, so that a message that is not printed goes to another."""
    if plan.group is None:
        async for batch in messages.batches():
            yield batch
    async for message in messages:
        yield [message]


async def _is_at_end(client: AsyncClient, plan: SubscribePlan) -> bool:
    """Return whether this client, or its group, has processed every matching message of the log."""
    wanted = sorted(set(plan.filters))
    if plan.group is not None:
        return any(one.name == plan.group and one.filters == wanted and not one.lag for one in await client.groups())
    return any(
        one.idle and one.filters == wanted and one.cursor == (plan.cursor or "")
        for one in await client.cursors(client.name)
    )


def position_after(messages: Sequence[Message], before: int) -> int:
    """Return the position after these messages, or `before` if none of them is in the log."""
    logged = (message.offset for message in messages if message.offset is not None and not message.retained)
    return max((offset + 1 for offset in logged), default=before)


async def _save(target: Target, plan: SubscribePlan, folder: Path, limits: tuple[int, int], as_json: bool) -> None:
    from godwit.cli.progress import FileProgress
    from godwit.cli.streams import Output

    output = Output()
    saved = 0

    async def receive(client: AsyncClient, progress: FileProgress) -> None:
        nonlocal saved
        start = plan.start if plan.back is None else max(await end_of_log(client, plan.filters) - plan.back, 0)
        receiver = client.receive_files(
            *plan.filters,
            folder=folder,
            start=start,
            since=plan.since,
            progress=progress.show,
            on_problem=progress.report,
            max_file_bytes=limits[0],
            max_total_bytes=limits[1],
        )
        async with receiver as files:
            async for file in files:
                progress.finish(file.name)
                progress.finish(file.path.name)
                await progress.write(file_line(file, as_json=as_json), output)
                saved += 1
                if saved == plan.count:
                    return

    with FileProgress(enabled=sys.stderr.isatty()) as progress:
        async with connected(target) as client:
            try:
                async with asyncio.timeout(plan.wait_s) as limit:
                    await guarded(receive(client, progress), output.until_closed())
            except TimeoutError:
                if not limit.expired():
                    raise
    plan.require_count(saved, "file")


def file_line(file: ReceivedFile, *, as_json: bool) -> str:
    """Return the line printed for a received file: its path, or a JSON object."""
    import msgspec

    if not as_json:
        return f"{safe(str(file.path))}\n"
    fields = {
        "path": str(file.path).encode("utf-8", "replace").decode(),
        "name": file.name,
        "topic": file.topic,
        "publisher": file.publisher,
        "size_bytes": file.size_bytes,
        "sha256": file.sha256.hex(),
    }
    return safe_json(msgspec.json.encode(fields)).decode() + "\n"


def _report_gap(missed: int | None, replaced: tuple[int, int] | None) -> None:
    if missed is None and replaced is not None:
        begin, end = replaced
        print_notice(
            f"the broker has an older copy of its log: the messages received at the offsets {begin:,} to {end - 1:,} "
            "are not in it, and other messages have these offsets; continuing with them"
        )
    elif missed is None:
        print_notice("may have missed messages, an unknown number: the broker has a new log")
    else:
        print_notice(
            f"missed up to {counted(missed, 'message')}"
        )  # if the broker does not know which ones matched, it counts all
