-- The current version of a log's file: what an empty file becomes. See schema_*.sql for the versions 1 to 3; version 4
-- had the same tables.
--
-- `seal` is a checksum of the other values of its row. In `blocks` it covers the numbers only: the columns topics and
-- body contain their own checksums.

-- log_id: random, made with the file. created_us. stamp: the log secret (godwit.store.state). end_offset: no offset
-- below it is assigned again; the triggers below set it, without a checksum.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value ANY NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The messages. A row is a block (godwit.store.block). The small columns come before the body, which is on pages of its
-- own, so scanning them does not read any body.
CREATE TABLE blocks (
    first_offset INTEGER PRIMARY KEY,
    end_offset INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    seal INTEGER NOT NULL,
    topics BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The log ends where its newest block ends. When that block is deleted or shortened, the end is stored in `meta`,
-- because an offset is never assigned twice.
CREATE TRIGGER end_of_deleted AFTER DELETE ON blocks
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

CREATE TRIGGER end_of_shortened AFTER UPDATE OF end_offset ON blocks WHEN new.end_offset < old.end_offset
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

-- Retention floors (godwit.wire.retention_floors).
CREATE TABLE marks (
    pattern TEXT PRIMARY KEY,
    floor INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Epochs (godwit.wire.epochs). Each row is one run of a broker that appended to this log, and is written in the
-- transaction of its first message.
CREATE TABLE epochs (
    first_offset INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    begun_us INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

-- The broker's state beside the messages (godwit.wire.changes): topics, retained messages, sessions, subscriptions,
-- publishers, queries, jobs. godwit.store.state describes the encoding.
CREATE TABLE state (
    kind TEXT NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
