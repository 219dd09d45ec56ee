"""The channel of a bridge: records of another broker's log in, confirms and credit out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from godwit.broker.effects import Effect, refusal_notice
from godwit.broker.ports import RequestFailure
from godwit.broker.relays import InboundRelay
from godwit.broker.session import Session
from godwit.errors import DecodeError
from godwit.native.effects import ConfirmRecord, ReturnCredit
from godwit.native.peer import NativePeer
from godwit.transport.events import Received
from godwit.wire.control import PublishRefused
from godwit.wire.control_base import Code
from godwit.wire.epochs import Epoch
from godwit.wire.relay import RelayOpen, RelayOpened, decode_relay_record

if TYPE_CHECKING:
    from godwit.broker.broker import Broker


class RelayChannel(InboundRelay):
    """A bridge on one channel. Once refused, records that still arrive on it are discarded."""

    def __init__(self, broker: Broker, peer: NativePeer, session: Session, number: int, effects: list[Effect]) -> None:
        super().__init__(peer, session)
        self._broker = broker
        self._native_peer = peer
        self._number = number
        self._effects = effects
        self._is_refused = False
        peer.publish_channels[number] = self

    def open(self, request: RelayOpen, now_us: int) -> None:
        """Handle record 0."""
        try:
            self._broker.relays.open(self, request, self._answer, now_us)
        except RequestFailure as failure:
            self._refuse(failure)

    def _answer(self, offset: int | None, epochs: Sequence[Epoch]) -> None:
        if self._native_peer.is_open:
            self._native_peer.send(RelayOpened(channel=self._number, offset=offset, epochs=list(epochs)))

    def handle(self, event: Received, now_us: int) -> None:
        """Handle a record. Raises DecodeError if it is malformed."""
        body_bytes = len(event.body)
        if not event.reliable:
            raise DecodeError("relay", "an unreliable record")
        if self._is_refused or not event.body:
            self._effects.append(ReturnCredit(self._native_peer.connection, self._number, body_bytes))
        else:
            record = decode_relay_record(event.body)
            try:
                self._broker.relays.append(self, record, partial(self._confirm, event.record, body_bytes), now_us)
            except RequestFailure as failure:
                self._effects.append(ReturnCredit(self._native_peer.connection, self._number, body_bytes))
                self._broker.relays.close(self)
                self._refuse(failure)
            else:
                if self.peer.bucket is not None:
                    self.peer.bucket.take(sum([entry.count for _, entry in record.entries]), now_us)
        if event.last:
            self._broker.relays.close(self)
            self._native_peer.publish_channels.pop(self._number, None)

    def _confirm(self, record: int, body_bytes: int) -> None:
        """Confirm a record that is stored, and return its credit: at once, or when the client's rate allows it."""
        peer = self._native_peer
        if not peer.is_open:
            return
        bucket = peer.bucket
        if bucket is not None and bucket.due_us > self._broker.now_us:
            credit = ReturnCredit(peer.connection, self._number, body_bytes)
            self._broker.deferred_credit.add(peer, partial(self._effects.append, credit))
            body_bytes = -1
        self._effects.append(ConfirmRecord(peer.connection, self._number, record, 0, body_bytes))

    def ended(self, code: Code, text: str) -> None:
        if not self._is_refused and self._native_peer.is_open:
            self._is_refused = True
            self._native_peer.send(PublishRefused(channel=self._number, code=code, text=text))

    def _refuse(self, failure: RequestFailure) -> None:
        if failure.code is Code.NOT_ALLOWED:
            self._effects.append(refusal_notice(self.session, failure.code, failure.text))
        self.ended(failure.code, failure.text)

    def forget(self) -> None:
        """The connection has ended."""
        self._broker.relays.close(self)
