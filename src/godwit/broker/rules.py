"""New access rules, for those who are connected: who has lost a right is told, and what it was doing ends."""

from __future__ import annotations

from collections.abc import Iterable

from godwit.broker.access import Access
from godwit.broker.effects import Close, Effect, Notice, Send
from godwit.broker.session import Link, Session
from godwit.broker.subscribing import Subscribing
from godwit.wire.control import Kicked, encode_control
from godwit.wire.control_base import Code


def close(link: Link, code: Code, reason: str, effects: list[Effect]) -> None:
    """The connection's Closed comes back as an event, and cleans up."""
    effects.append(Close(link.connection, code, reason))
    session = link.session
    name = session.name if session is not None else link.address
    fields = session.fields() if session is not None else {"client": name, "host": link.host}
    effects.append(Notice("closed", f"closed {name}: {reason}", {**fields, "code": int(code)}))


def apply_rules(
    links: Iterable[Link], access: Access, former: Access, subscribing: Subscribing, effects: list[Effect]
) -> None:
    """`former`: the rules that held before."""
    for link in links:
        session = link.session
        if session is None:
            continue
        secret = access.secret_of(session.name)
        has_proved = session.is_proved and secret == former.secret_of(session.name)
        if not (has_proved if secret is not None else access.allows_anonymous):
            close(link, Code.NOT_ALLOWED, "the broker's access rules have changed: connect again", effects)
            continue
        _apply(link, session, access, subscribing, effects)


def _apply(link: Link, session: Session, access: Access, subscribing: Subscribing, effects: list[Effect]) -> None:
    for inlet in list(link.inlets.values()):
        if not inlet.is_refused and not access.may(session.name, session.is_proved, "publish", inlet.topic.name):
            inlet.refuse(Code.NOT_ALLOWED, f"{session.name} may no longer publish to {inlet.topic.name!r}", effects)
    for feed in list(link.feeds.values()):
        if not all(access.may(session.name, session.is_proved, "subscribe", text) for text in feed.filters):
            number = feed.number
            subscribing.end(session, feed)
            kicked = Kicked(subscription=number, by="the broker", reason="the access rules no longer allow it")
            effects.append(Send(link.connection, 0, encode_control(kicked)))
