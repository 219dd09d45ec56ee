-- Version 3 added epochs and quiet subscriptions.

CREATE TABLE epochs (
    first_offset INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    begun_us INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE TABLE quiet_feeds (
    session TEXT NOT NULL,
    filters TEXT NOT NULL,
    cursor TEXT,
    quiet_from INTEGER NOT NULL,
    is_settled INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX quiet_feeds_by_key ON quiet_feeds (session, filters, ifnull(cursor, x''));
