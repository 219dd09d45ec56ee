"""The broker's own figures, as retained messages on `$sys/...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from godwit.broker.catalogue import BROKER_NAME, Catalogue, Names
from godwit.broker.delivery import Delivery
from godwit.broker.jobs.service import JobService
from godwit.broker.publishing import Publishing
from godwit.broker.session import Session


class Figures:
    """Collects them, and publishes what changed since the last time."""

    def __init__(
        self,
        catalogue: Catalogue,
        names: Names,
        delivery: Delivery,
        publishing: Publishing,
        office: JobService,
        *,
        sessions: Mapping[str, Session],
        started_us: int,
    ) -> None:
        self._catalogue = catalogue
        self._delivery = delivery
        self._publishing = publishing
        self._office = office
        self._sessions = sessions
        self._started_us = started_us
        self._number = names.number(BROKER_NAME)
        self._said: dict[str, str] = {}
        self.sources: list[Callable[[], Mapping[str, int]]] = []
        """Functions that return further figures, such as the counters of sockets."""

    def collect(self, now_us: int) -> dict[str, int | str]:
        return {
            "uptime_s": (now_us - self._started_us) // 1_000_000,
            "clients/connected": sum(session.link is not None for session in self._sessions.values()),
            "clients/sessions": len(self._sessions),
            "subscriptions": self._delivery.subscriptions,
            "topics": len(self._catalogue),
            "retained": self._catalogue.retained,
            "messages/in": self._publishing.messages_in,
            "messages/out": self._delivery.messages_out,
            "messages/dropped": self._delivery.live_dropped + self._publishing.dropped,
            "bytes/in": self._publishing.bytes_in,
            "log/first_offset": self._delivery.first_offset,
            "log/next_offset": self._delivery.next_offset,
            **self._office.figures(),
            **{name: figure for source in self.sources for name, figure in source().items()},
        }

    def publish(self, now_us: int) -> None:
        for name, figure in self.collect(now_us).items():
            text = str(figure)
            if self._said.get(name) == text:
                continue
            self._said[name] = text
            topic = self._catalogue.own(f"$sys/{name}")
            self._publishing.publish_figure(topic, text.encode(), self._number, BROKER_NAME, now_us)
