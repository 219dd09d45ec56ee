"""The broker's own figures, as retained messages on `$sys/...`."""

from __future__ import annotations

from collections.abc import Mapping

from godwit.broker.catalogue import Catalogue, Names
from godwit.broker.publishing import Publishing

BROKER_NAME = "$broker"


class Figures:
    """Publishes what changed since the last time."""

    def __init__(self, catalogue: Catalogue, names: Names, publishing: Publishing) -> None:
        self._catalogue = catalogue
        self._publishing = publishing
        self._number = names.number(BROKER_NAME)
        self._said: dict[str, str] = {}

    def publish(self, figures: Mapping[str, int | str], now_us: int) -> None:
        for name, figure in figures.items():
            text = str(figure)
            if self._said.get(name) == text:
                continue
            self._said[name] = text
            topic = self._catalogue.own(f"$sys/{name}")
            self._publishing.publish_figure(topic, text.encode(), self._number, BROKER_NAME, now_us)
