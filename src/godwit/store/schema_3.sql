-- The third version. As in all tables, `seal` is a checksum of the other values of a row.

-- Epochs (godwit.wire.epochs). Each row is one run of a broker that appended to this log, and is written in the
-- transaction of its first message.
CREATE TABLE epochs (
    first_offset INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    begun_us INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

-- Quiet subscriptions (godwit.broker.quiet). Nothing for a subscription is in the log between quiet_from and its
-- resume_at in `feeds`; if is_settled, nothing is after quiet_from. The key is that of `feeds`.
CREATE TABLE quiet_feeds (
    session TEXT NOT NULL,
    filters TEXT NOT NULL,
    cursor TEXT,
    quiet_from INTEGER NOT NULL,
    is_settled INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX quiet_feeds_by_key ON quiet_feeds (session, filters, ifnull(cursor, x''));
