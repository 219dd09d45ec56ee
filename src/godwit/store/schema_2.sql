-- Version 2 (Godwit 0.5.0) added jobs and their tasks.

CREATE TABLE next_job (
    place INTEGER PRIMARY KEY CHECK (place = 0),
    job INTEGER NOT NULL,
    seal INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    job INTEGER PRIMARY KEY,
    controller TEXT NOT NULL,
    key TEXT NOT NULL,
    kind TEXT NOT NULL,
    workers INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    submitted_us INTEGER NOT NULL,
    begins_us INTEGER NOT NULL,
    deadline_us INTEGER,
    retries INTEGER NOT NULL,
    retry_delay_ms INTEGER NOT NULL,
    time_limit_ms INTEGER,
    state TEXT NOT NULL,
    agreed INTEGER,
    ended_us INTEGER,
    reason TEXT NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE TABLE job_payloads (
    job INTEGER PRIMARY KEY,
    payload BLOB NOT NULL,
    seal INTEGER NOT NULL
) STRICT;

CREATE TABLE tasks (
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    worker TEXT NOT NULL,
    instance BLOB NOT NULL,
    fence INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    losses INTEGER NOT NULL,
    begins_us INTEGER NOT NULL,
    since_us INTEGER NOT NULL,
    had TEXT NOT NULL,
    result BLOB NOT NULL,
    error TEXT NOT NULL,
    seal INTEGER NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;
