-- Version 1 of a log's file (Godwit 0.3.0). See schema.sql for the meaning of the tables that still exist.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value ANY NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE blocks (
    first_offset INTEGER PRIMARY KEY,
    end_offset INTEGER NOT NULL,
    received_us INTEGER NOT NULL,
    until_us INTEGER NOT NULL,
    seal INTEGER NOT NULL,
    topics BLOB NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE TRIGGER end_of_deleted AFTER DELETE ON blocks
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

CREATE TRIGGER end_of_shortened AFTER UPDATE OF end_offset ON blocks WHEN new.end_offset < old.end_offset
BEGIN
    UPDATE meta SET value = old.end_offset WHERE key = 'end_offset' AND value < old.end_offset;
END;

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
