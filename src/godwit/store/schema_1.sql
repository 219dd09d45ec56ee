-- The first version of the log's file: what an empty file becomes.

-- Rows are believed at a restart, so that they must be what was written: `seal` is a checksum of the other values of a
-- row, here and in the tables below. In `blocks` it is that of the numbers: topics and body have their own.

-- log_id: random, made with the file. created_us. stamp: random and secret, see godwit.store.meta. end_offset: no offset
-- below it is given out again; triggers set it, and they cannot seal it.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value ANY NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The log. A row is a block (godwit.store.block); the small columns stand before its body, which is on pages of its own,
-- so that looking through them touches no body.
CREATE TABLE blocks (
    first_offset INTEGER PRIMARY KEY,
    end_offset INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    seal INTEGER NOT NULL,
    topics BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- The log's end is that of its newest block. When that goes, or becomes shorter, its end is remembered: an offset is
-- never used twice.
CREATE TRIGGER end_of_deleted AFTER DELETE ON blocks
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

CREATE TRIGGER end_of_shortened AFTER UPDATE OF end_offset ON blocks WHEN new.end_offset < old.end_offset
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

-- What changes beside the log (godwit.wire.changes).
CREATE TABLE topics (
    name TEXT PRIMARY KEY,
    messages INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    last_us INTEGER NOT NULL,
    is_created INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE retained (
    topic TEXT PRIMARY KEY,
    payload BLOB NOT NULL,
    publisher TEXT NOT NULL,
    published_us INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    qos INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    name TEXT PRIMARY KEY,
    instance BLOB NOT NULL,
    is_proved INTEGER NOT NULL,
    expiry_s INTEGER NOT NULL,
    ends_at_us INTEGER,
    will BLOB,
    seal INTEGER NOT NULL
) STRICT;

CREATE TABLE feeds (
    session TEXT NOT NULL,
    filters TEXT NOT NULL,
    cursor TEXT,
    resume_at INTEGER NOT NULL,
    lost INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

-- No cursor is a key as any other, and not the same as one without a name.
CREATE UNIQUE INDEX feeds_by_key ON feeds (session, filters, ifnull(cursor, x''));

CREATE TABLE identities (
    owner TEXT NOT NULL,
    publisher TEXT NOT NULL,
    topic TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    last_us INTEGER NOT NULL,
    seal INTEGER NOT NULL,
    PRIMARY KEY (owner, publisher, topic)
) STRICT, WITHOUT ROWID;

CREATE TABLE queries (
    query TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    last_us INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE marks (
    pattern TEXT PRIMARY KEY,
    floor INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
