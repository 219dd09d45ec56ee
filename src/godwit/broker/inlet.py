"""A channel on which a client publishes."""

from __future__ import annotations

from godwit.broker.catalogue import Topic
from godwit.broker.effects import Effect, Send
from godwit.broker.identities import Key
from godwit.broker.session import Link, Session
from godwit.wire.control import PublishRefused, encode_control
from godwit.wire.control_base import Code


class Inlet:
    """What the channel was opened for. Once refused, what comes on it is thrown away."""

    __slots__ = (
        "_is_counted", "channel", "epoch", "is_refused", "key", "link", "next_sequence", "qos", "session", "topic",
    )  # fmt: skip

    topic: Topic

    def __init__(self, link: Link, session: Session, channel: int) -> None:
        self.link = link
        self.session = session
        self.channel = channel
        self.qos = 1
        self.key: Key | None = None
        self.epoch = 0
        self.next_sequence = 0
        """Of QoS 0: what comes later than something behind it is not delivered, so that order holds."""
        self.is_refused = False
        self._is_counted = False

    def enter(self) -> None:
        """It is in use from now on, and counts for its topic."""
        self._is_counted = True
        self.topic.publishers += 1

    def refuse(self, code: Code, text: str, effects: list[Effect]) -> None:
        """What comes on this channel from now on is thrown away."""
        if not self.is_refused:
            self._leave()
            self.is_refused = True
            refused = PublishRefused(channel=self.channel, code=code, text=text)
            effects.append(Send(self.link.connection, 0, encode_control(refused)))

    def end(self) -> None:
        """The channel is over, or its connection."""
        self._leave()
        self.link.inlets.pop(self.channel, None)

    def _leave(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self.topic.publishers -= 1
