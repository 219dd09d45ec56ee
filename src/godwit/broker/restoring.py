"""A broker begins with what the one before it had kept: topics, retained messages, sessions, publishers, jobs."""

from __future__ import annotations

from godwit.broker.admission import Admission
from godwit.broker.catalogue import Catalogue
from godwit.broker.delivery import Delivery
from godwit.broker.identities import Identities
from godwit.broker.importing import Importing
from godwit.broker.jobs.service import JobService
from godwit.broker.retained import Kept
from godwit.broker.subscribing import Subscribing
from godwit.wire.changes import RetainedRow, StoredState


def restore(
    state: StoredState,
    catalogue: Catalogue,
    delivery: Delivery,
    identities: Identities,
    admission: Admission,
    subscribing: Subscribing,
    importing: Importing,
    office: JobService,
    now_us: int,
) -> None:
    """Everything that is kept, to parts that are new. Limits that were lowered since turn nothing of it away."""
    delivery.marks.update(state.retention_floors)
    for topic in state.topics:
        catalogue.restore(topic)
    for retained in state.retained:
        catalogue.keep(catalogue.adopt(retained.topic), _kept(retained, catalogue.keeps + 1))
    for identity in state.identities:
        identities.restore(identity)
    for session in state.sessions:
        admission.restore(session, now_us)
    for feed in state.subscriptions:
        owner = admission.sessions.get(feed.session)
        if owner is not None:
            subscribing.restore(owner, feed)
    importing.restore(state.queries)
    office.restore(state, now_us)


def _kept(kept: RetainedRow, serial: int) -> Kept:
    return Kept(kept.payload, kept.publisher, kept.published_us, kept.received_us, kept.qos, kept.offset, serial)
