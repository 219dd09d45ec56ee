"""The requests of the pages: each is answered by the client of the person, with that client's rights."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from godwit.console.connection import BrowserConnection, PageRequestError
from godwit.console.link import REQUEST_TIMEOUT_S
from godwit.console.pipeline import PipelineQuery, RequeueQuery, pipeline, requeue
from godwit.console.tail import (
    BUSY_RATE,
    MAX_WATCHED,
    Tail,
    ValueWatch,
    first_message,
    message_properties,
    payload_detail,
    payload_form,
)

MAX_OPEN: Final = 1_000
MAX_TOPIC_LETTERS: Final = 2_000
MAX_PAGE: Final = 200
MAX_JOBS: Final = 5_000
MAX_TASKS: Final = 500
VALUE_TIMEOUT_S: Final = 2.0

Answer = Callable[[BrowserConnection, Any], Awaitable[Any]]


class NoArguments(msgspec.Struct, forbid_unknown_fields=True):
    """A request without arguments."""


# -- overview ---------------------------------------------------------------------------------------------------------


async def overview(browser: BrowserConnection, _: NoArguments) -> Any:
    link = browser.link
    return {"columns": link.history.columns(), **link.overview()}


# -- topics -----------------------------------------------------------------------------------------------------------


class TopicsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    open: list[str] = []
    search: str = ""
    sort: str = "name"
    offset: int = 0
    limit: int = 100


async def topics(browser: BrowserConnection, query: TopicsQuery) -> Any:
    catalogue = browser.link.catalogue
    await catalogue.refresh()
    return catalogue.page(
        set(query.open[:MAX_OPEN]), query.search[:MAX_TOPIC_LETTERS], query.sort, max(query.offset, 0), query.limit
    )


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    topic: str


async def topic(browser: BrowserConnection, query: TopicQuery) -> Any:
    client = browser.link.client
    infos = await client.topics(query.topic, timeout_s=REQUEST_TIMEOUT_S)
    info = infos[0] if infos else None
    retained = last = None
    if info is not None and info.retained:
        retained = await first_message(browser.link, query.topic, None, VALUE_TIMEOUT_S)
    if info is not None and info.last_us:
        # The time of the last message, so that it is the only one that is read.
        last = await first_message(browser.link, query.topic, info.last_us, VALUE_TIMEOUT_S)
    return {
        "topic": None if info is None else msgspec.to_builtins(info),
        "rate": browser.link.catalogue.rate_of(query.topic),
        "retained": None if retained is None else {**payload_form(retained.payload, 2_000), "us": retained.received_us},
        "last": None if last is None else {**payload_form(last.payload, 2_000), "us": last.received_us},
    }


class ValuesQuery(msgspec.Struct, forbid_unknown_fields=True):
    topics: list[str]


async def values(browser: BrowserConnection, query: ValuesQuery) -> Any:
    """Send the last values of these topics from now on, instead of others."""
    await browser.stop("values")
    catalogue = browser.link.catalogue
    wanted = [name for name in query.topics[:MAX_WATCHED] if catalogue.rate_of(name) <= BUSY_RATE]
    if wanted:
        browser.parts["values"] = ValueWatch(browser.link, wanted, browser.send)
    return {"watched": wanted}


class TailQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    filters: list[str]
    since_us: int | None = None
    tail: int


async def tail(browser: BrowserConnection, query: TailQuery) -> Any:
    """Send the messages of these filters from now on, instead of others."""
    await browser.stop("tail")
    filters = [text for text in query.filters if text]
    if not filters:
        raise PageRequestError("Give a topic filter, for example home/#.")
    browser.parts["tail"] = Tail(browser.link, filters[:16], query.since_us, browser.send, query.tail)
    return {}


async def stop_tail(browser: BrowserConnection, _: NoArguments) -> Any:
    await browser.stop("tail")
    return {}


class PayloadQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    message: int
    form: str = "text"


async def payload(browser: BrowserConnection, query: PayloadQuery) -> Any:
    part = browser.parts.get("tail")
    found = part.message(query.message) if isinstance(part, Tail) else None
    if found is None:
        raise PageRequestError("This message is no longer in memory: only the last 500 are.")
    detail = await asyncio.get_running_loop().run_in_executor(None, payload_detail, found.payload, query.form)
    return {**detail, "properties": message_properties(found)}


class PublishQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    topic: str
    payload: str = ""
    form: str = "text"
    qos: int = 1
    retain: bool = False


async def publish(browser: BrowserConnection, query: PublishQuery) -> Any:
    data = form_bytes(query.payload, query.form)
    reached = await browser.link.client.publish(
        query.topic, data, qos=query.qos, retain=query.retain, timeout_s=REQUEST_TIMEOUT_S
    )
    return {"reached": reached, "bytes": len(data)}


def form_bytes(text: str, form: str) -> bytes:
    """Return the bytes that a person typed as text, JSON or hexadecimal digits. Raises PageRequestError."""
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise PageRequestError(
                "This is not hexadecimal: give two digits for each byte, for example 48 69."
            ) from None
    if form == "json":
        try:
            msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise PageRequestError(f"This is not JSON: {error}.") from None
    return text.encode("utf-8", "replace")


# -- clients ----------------------------------------------------------------------------------------------------------


class ClientsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    search: str = ""
    sort: str = "name"
    offset: int = 0
    limit: int = 100


CLIENT_SORTS: Final[dict[str, Callable[[Any], Any]]] = {
    "name": lambda one: one.name,
    "since": lambda one: -one.since_us,
    "in": lambda one: -one.messages_in,
    "out": lambda one: -one.messages_out,
    "round_trip": lambda one: -one.round_trip_us,
    "lost": lambda one: -one.packets_lost,
    "bytes": lambda one: -one.bytes_sent,
}
"""By key of the table: how clients are sorted. `lag` sorts them, too."""


async def clients(browser: BrowserConnection, query: ClientsQuery) -> Any:
    found = await browser.cached("clients", lambda: browser.link.client.clients(timeout_s=REQUEST_TIMEOUT_S))
    lags = await browser.cached("lags", lambda: read_lags(browser))
    wanted = query.search.casefold()
    chosen = [
        one
        for one in found
        if not wanted
        or wanted in one.name.casefold()
        or wanted in one.address
        or any(wanted in text.casefold() for filters in one.subscriptions for text in filters)
    ]
    if query.sort == "lag":
        chosen.sort(key=lambda one: (-lags.get(one.name, 0), one.name))
    else:
        chosen.sort(key=CLIENT_SORTS.get(query.sort, CLIENT_SORTS["name"]))
    start = max(query.offset, 0)
    rows = []
    for one in chosen[start : start + min(max(query.limit, 1), MAX_PAGE)]:
        row = msgspec.to_builtins(one)
        row["lag"] = lags.get(one.name, 0)
        row["subscriptions"] = one.subscriptions[:3]
        row["subscription_count"] = len(one.subscriptions)
        rows.append(row)
    online = sum(bool(one.address) for one in found)
    return {"total": len(chosen), "offset": start, "rows": rows, "clients": len(found), "online": online}


async def read_lags(browser: BrowserConnection) -> dict[str, int]:
    """Return the largest lag of each client's subscriptions."""
    lags: dict[str, int] = {}
    for cursor in await browser.link.client.cursors(timeout_s=REQUEST_TIMEOUT_S):
        if not cursor.idle:  # the lag of an idle one are messages that its filters do not match
            lags[cursor.client] = max(lags.get(cursor.client, 0), cursor.lag)
    return lags


class ClientQuery(msgspec.Struct, forbid_unknown_fields=True):
    name: str


async def client(browser: BrowserConnection, query: ClientQuery) -> Any:
    found = await browser.cached("clients", lambda: browser.link.client.clients(timeout_s=REQUEST_TIMEOUT_S))
    one = next((one for one in found if one.name == query.name), None)
    if one is None:
        raise PageRequestError("This client does not exist any more.")
    cursors = await browser.link.client.cursors(query.name, timeout_s=REQUEST_TIMEOUT_S)
    return {"client": msgspec.to_builtins(one), "cursors": msgspec.to_builtins(cursors[:MAX_PAGE])}


class KickQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    filters: list[str] = []
    reason: str = ""
    keep: bool = False
    """Only close its connection."""


async def kick(browser: BrowserConnection, query: KickQuery) -> Any:
    await browser.link.client.kick(
        query.name,
        *query.filters,
        reason=query.reason or "in the console",
        keep_session=query.keep,
        timeout_s=REQUEST_TIMEOUT_S,
    )
    browser.forget("clients")
    return {}


# -- jobs -------------------------------------------------------------------------------------------------------------


class JobsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    kind: str = ""
    state: str = ""
    offset: int = 0
    limit: int = 100


async def jobs(browser: BrowserConnection, query: JobsQuery) -> Any:
    start = min(max(query.offset, 0), MAX_JOBS)
    size = min(max(query.limit, 1), MAX_PAGE)
    states: Any = [query.state] if query.state else None
    limit = start + size + 1
    found = await browser.cached(
        f"jobs {limit} {query.state} {query.kind}",
        lambda: browser.link.client.jobs(
            kind=query.kind or None, states=states, limit=limit, timeout_s=REQUEST_TIMEOUT_S
        ),
    )
    rows = found[start : start + size]
    return {"rows": msgspec.to_builtins(rows), "offset": start, "total": len(found)}


async def workers(browser: BrowserConnection, _: NoArguments) -> Any:
    """Return the workers, and for each kind of work its queue and its capacity."""
    link = browser.link
    found = await browser.cached("workers", lambda: link.client.workers(timeout_s=REQUEST_TIMEOUT_S))
    waiting = await browser.cached(
        "unended",
        lambda: link.client.jobs(states=["waiting", "running"], limit=MAX_JOBS, timeout_s=REQUEST_TIMEOUT_S),
    )
    kinds: dict[str, dict[str, Any]] = {}

    def kind_of(name: str) -> dict[str, Any]:
        new = {"kind": name, "waiting": 0, "running": 0, "workers": 0, "capacity": 0}
        return kinds.setdefault(name, new)

    for job in waiting:
        kind_of(job.of_kind)["waiting" if job.leased == 0 else "running"] += 1
    for worker in found:
        for name in worker.kinds[:MAX_PAGE]:
            kind_of(name)["workers"] += 1
            kind_of(name)["capacity"] += worker.capacity
    ordered = sorted(kinds.values(), key=lambda one: (-one["waiting"], one["kind"]))
    return {
        "workers": msgspec.to_builtins(found[:MAX_PAGE]),
        "worker_count": len(found),
        "kinds": ordered[:MAX_PAGE],
        "kind_count": len(ordered),
    }


class JobQuery(msgspec.Struct, forbid_unknown_fields=True):
    job: int


async def job(browser: BrowserConnection, query: JobQuery) -> Any:
    info, tasks = await browser.link.client.job_info(query.job, timeout_s=REQUEST_TIMEOUT_S)
    return {
        "job": msgspec.to_builtins(info),
        "tasks": msgspec.to_builtins(tasks[:MAX_TASKS]),
        "task_count": len(tasks),
    }


class SubmitQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    kind: str
    payload: str = ""
    form: str = "text"
    workers: int = 1
    """0: all that volunteer."""
    priority: int = 0
    delay_s: float = 0.0


async def submit(browser: BrowserConnection, query: SubmitQuery) -> Any:
    made = await browser.link.client.submit(
        query.kind,
        form_bytes(query.payload, query.form),
        workers="all" if query.workers == 0 else query.workers,
        priority=query.priority,
        delay_s=query.delay_s,
        timeout_s=REQUEST_TIMEOUT_S,
    )
    forget_jobs(browser)
    return {"job": made.number}


def forget_jobs(browser: BrowserConnection) -> None:
    """Have the lists read again that a change of a job outdates."""
    browser.forget("jobs ")
    browser.forget("unended")


async def cancel(browser: BrowserConnection, query: JobQuery) -> Any:
    await browser.link.client.cancel_job(query.job, "cancelled in the console", timeout_s=REQUEST_TIMEOUT_S)
    forget_jobs(browser)
    return {}


async def retry(browser: BrowserConnection, query: JobQuery) -> Any:
    made = await browser.link.client.retry_job(query.job, timeout_s=REQUEST_TIMEOUT_S)
    forget_jobs(browser)
    return {"job": made.number}


# -- log --------------------------------------------------------------------------------------------------------------


async def log(browser: BrowserConnection, _: NoArguments) -> Any:
    link = browser.link
    rules: Any = []
    text = link.history.current.get("log/retention")
    if text:
        try:
            rules = msgspec.json.decode(text)
        except msgspec.DecodeError:
            rules = []
    return {**link.overview(), "columns": link.history.columns(), "retention": rules, "durable": text is not None}


REQUESTS: Final[dict[str, tuple[type[Any], Answer]]] = {
    "overview": (NoArguments, overview),
    "topics": (TopicsQuery, topics),
    "topic": (TopicQuery, topic),
    "values": (ValuesQuery, values),
    "tail": (TailQuery, tail),
    "stop_tail": (NoArguments, stop_tail),
    "payload": (PayloadQuery, payload),
    "publish": (PublishQuery, publish),
    "clients": (ClientsQuery, clients),
    "client": (ClientQuery, client),
    "kick": (KickQuery, kick),
    "jobs": (JobsQuery, jobs),
    "workers": (NoArguments, workers),
    "job": (JobQuery, job),
    "submit": (SubmitQuery, submit),
    "cancel": (JobQuery, cancel),
    "retry": (JobQuery, retry),
    "log": (NoArguments, log),
    "pipeline": (PipelineQuery, pipeline),
    "requeue": (RequeueQuery, requeue),
}
"""By name: the type of the arguments, and the function that answers."""
