"""Work, as a client sees it: joins the jobs that it submits, the leases that it holds and the channels of both ways."""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Callable
from typing import Final

from godwit.client.events import ClientEvent
from godwit.client.jobs import Jobs
from godwit.client.requests import Requests
from godwit.client.work import WorkChannel
from godwit.client.worker import Leases
from godwit.errors import DecodeError
from godwit.transport.connection import Connection
from godwit.transport.events import Received
from godwit.wire.control import ControlMessage, Done, Error
from godwit.wire.jobs import VolunteerReply, WatchReply
from godwit.wire.work import LeaseGroup, RevokeGroup, SubmitReplyGroup, decode_from_broker

_RUN: Final = slice(8, 13)
"""Of the instance's bytes: 8 letters that keys begin with. Its first bytes are told to everybody in names."""


class Working:
    """Feed: attach, detach, go_on, on_... from the client. The application's calls go to `jobs` and `leases`."""

    def __init__(
        self,
        send_buffer_bytes: int,
        requests: Requests,
        events: list[ClientEvent],
        instance: bytes,
        on_violation: Callable[[Connection, str], None],
    ) -> None:
        self.leases = Leases(requests, events)
        self.channel = WorkChannel(
            send_buffer_bytes, events, on_reported=self.leases.on_reported, on_violation=on_violation
        )
        self.leases.channel = self.channel
        self.jobs = Jobs(self.channel, requests, events, b32encode(instance[_RUN]).decode().lower())
        self.is_used = False
        """Whether anything was ever submitted or volunteered for: who only publishes and subscribes pays nothing."""
        self.inbound: int | None = None
        """The broker's channel on the present connection."""
        self._log = b""
        """Which log the numbers of jobs belong to."""

    # -- the connection -----------------------------------------------------------------------------------------------

    def attach(self, connection: Connection, log: bytes, max_message_bytes: int, now: float) -> None:
        """A broker has welcomed the client."""
        is_other_log = bool(self._log) and bool(log) and log != self._log
        self._log = log or self._log
        self.channel.attach(connection, max_message_bytes)
        self.leases.attach(now, is_other_log=is_other_log)
        self.jobs.attach(is_other_log=is_other_log)

    def detach(self) -> None:
        self.inbound = None
        self.channel.detach()
        self.leases.detach()
        self.jobs.detach()

    def next_timer(self) -> float | None:
        """When trains are to be asked for, if nothing else happens before."""
        if not self.is_used:
            return None
        group_at, lease_at = self.channel.due_at, self.leases.due_at
        if group_at is None or lease_at is None:
            return group_at if lease_at is None else lease_at
        return min(group_at, lease_at)

    def go_on(self, connection: Connection, now: float) -> None:
        """Trains are asked for: open groups go, and what is due."""
        channel = self.channel
        if channel.lacks_channel:
            channel.hand_over()
        due_at = self.leases.due_at
        if due_at is not None and now >= due_at:
            self.leases.add_due(now)
            self.leases.on_cut(now)
            channel.cut()
        elif channel.has_begun:
            if channel.has_report:
                self.leases.on_cut(now)
            if connection.has_unsent:
                channel.cut_if_late(now)
            else:
                channel.cut()

    # -- what the broker says -----------------------------------------------------------------------------------------

    def on_opened(self, event: Received) -> None:
        """The broker's channel begins."""
        if self.inbound is not None:
            raise DecodeError("work", f"a second channel of work, {event.channel}")
        self.inbound = event.channel

    def on_received(self, event: Received) -> None:
        """A record on the broker's channel; DecodeError if it cannot be."""
        if not event.reliable or event.last:
            raise DecodeError("work", "a record that may get lost, or the end of the channel of work")
        head, payloads = decode_from_broker(event.body)
        if isinstance(head, LeaseGroup):
            self.leases.on_leased(head, payloads)
        elif isinstance(head, SubmitReplyGroup):
            self.jobs.on_taken(head)
        elif isinstance(head, RevokeGroup):
            self.leases.on_revoked(head)
        else:
            self.jobs.on_update(head, payloads)
        event.connection.consume(event.channel, len(event.body))
        event.connection.confirm(event.channel, event.record, 0)

    def on_reply(self, message: ControlMessage) -> bool:
        """Whether it answers a question of ours."""
        if isinstance(message, VolunteerReply):
            return self.leases.on_volunteered(message)
        if isinstance(message, WatchReply):
            return self.jobs.on_watched(message)
        if isinstance(message, Done):
            return self.jobs.on_unwatched(message.request)
        if isinstance(message, Error) and message.request is not None:
            request, code, text = message.request, message.code, message.text
            return self.leases.on_error(request, code, text) or self.jobs.on_error(request, code, text)
        return False
