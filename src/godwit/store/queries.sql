-- Every statement on the log's file, by name. See the scripts schema_*.sql for what the columns mean.

-- name: select_random
SELECT randomblob(?);

-- name: insert_meta
INSERT INTO meta VALUES (?, ?, ?);

-- name: select_meta
SELECT key, value, seal FROM meta WHERE key <> 'end_offset';

-- name: select_first_offset
SELECT min(first_offset) FROM blocks;

-- name: select_end_offset
-- Of blocks that are gone. The newest one that is there may end later.
SELECT value FROM meta WHERE key = 'end_offset';

-- name: insert_block
INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: select_block_at
-- The block that holds an offset, or else the last one before it. As in all of these, the body is read by itself
-- (blob_open), and the topics only by who needs them: both may be on pages of their own, which are not touched then.
SELECT first_offset, end_offset, received_us, until_us, seal, x'', length(body) FROM blocks
WHERE first_offset <= ? ORDER BY first_offset DESC LIMIT 1;

-- name: select_key_at
SELECT max(first_offset) FROM blocks WHERE first_offset <= ?;

-- name: select_blocks
SELECT first_offset, end_offset, received_us, until_us, seal, x'', length(body) FROM blocks
WHERE first_offset >= ? AND first_offset < ? ORDER BY first_offset;

-- name: select_blocks_with_topics
SELECT first_offset, end_offset, received_us, until_us, seal, topics, length(body) FROM blocks
WHERE first_offset >= ? AND first_offset < ? ORDER BY first_offset;

-- name: select_next_block
SELECT first_offset FROM blocks WHERE first_offset >= ? ORDER BY first_offset LIMIT 1;

-- name: select_disorder
-- Of the newest blocks, one that stands before one with a lower offset: its page is damaged.
SELECT first_offset FROM (
    SELECT first_offset, lag(first_offset, 1, 9223372036854775807) OVER () AS offset_behind
    FROM (SELECT first_offset FROM blocks ORDER BY first_offset DESC LIMIT ?)
)
WHERE first_offset >= offset_behind LIMIT 1;

-- name: select_given_up
-- Whether a range stands in the log as one that recover gave up: a block without a body, and without topics.
SELECT count(*) FROM blocks WHERE first_offset = ? AND end_offset = ? AND topics = ? AND body = x'';

-- name: upsert_topic
INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    messages = excluded.messages, payload_bytes = excluded.payload_bytes, last_us = excluded.last_us,
    is_created = excluded.is_created, seal = excluded.seal;

-- name: delete_topic
DELETE FROM topics WHERE name = ?;

-- name: select_topics
SELECT * FROM topics ORDER BY name;

-- name: upsert_retained
INSERT INTO retained VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    payload = excluded.payload, publisher = excluded.publisher, published_us = excluded.published_us,
    received_us = excluded.received_us, qos = excluded.qos, "offset" = excluded."offset", seal = excluded.seal;

-- name: delete_retained
DELETE FROM retained WHERE topic = ?;

-- name: select_retained
SELECT * FROM retained ORDER BY topic;

-- name: upsert_session
INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    instance = excluded.instance, is_proved = excluded.is_proved, expiry_s = excluded.expiry_s,
    ends_at_us = excluded.ends_at_us, will = excluded.will, seal = excluded.seal;

-- name: delete_session
-- With all its subscriptions.
DELETE FROM sessions WHERE name = ?;
DELETE FROM feeds WHERE session = ?;
DELETE FROM quiet_feeds WHERE session = ?;

-- name: select_sessions
SELECT * FROM sessions ORDER BY name;

-- name: upsert_feed
INSERT INTO feeds VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    resume_at = excluded.resume_at, lost = excluded.lost, seal = excluded.seal;

-- name: upsert_quiet_feed
INSERT INTO quiet_feeds VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    quiet_from = excluded.quiet_from, is_settled = excluded.is_settled, seal = excluded.seal;

-- name: delete_feed
DELETE FROM feeds WHERE session = ? AND filters = ? AND ifnull(cursor, x'') = ifnull(?, x'');

-- name: delete_quiet_feed
DELETE FROM quiet_feeds WHERE session = ? AND filters = ? AND ifnull(cursor, x'') = ifnull(?, x'');

-- name: select_feeds
SELECT * FROM feeds ORDER BY session, filters, cursor;

-- name: select_quiet_feeds
SELECT * FROM quiet_feeds;

-- name: upsert_identity
INSERT INTO identities VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    epoch = excluded.epoch, next_sequence = excluded.next_sequence, last_us = excluded.last_us, seal = excluded.seal;

-- name: delete_identity
DELETE FROM identities WHERE owner = ? AND publisher = ? AND topic = ?;

-- name: select_identities
SELECT * FROM identities ORDER BY last_us, owner, publisher, topic;

-- name: upsert_query
INSERT INTO queries VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET
    batch = excluded.batch, last_us = excluded.last_us, seal = excluded.seal;

-- name: delete_query
DELETE FROM queries WHERE query = ?;

-- name: select_queries
SELECT * FROM queries ORDER BY last_us, query;

-- name: upsert_mark
INSERT INTO marks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET floor = excluded.floor, seal = excluded.seal;

-- name: select_marks
SELECT * FROM marks ORDER BY pattern;

-- name: select_highest_mark
SELECT ifnull(max(floor), 0) FROM marks;

-- name: insert_epoch
INSERT INTO epochs VALUES (?, ?, ?, ?);

-- name: delete_old_epochs
-- All that stand before as many of the newest ones, and one more.
DELETE FROM epochs WHERE first_offset < (SELECT first_offset FROM epochs ORDER BY first_offset DESC LIMIT 1 OFFSET ?);

-- name: select_epochs
SELECT * FROM epochs ORDER BY first_offset;

-- name: replace_next_job
REPLACE INTO next_job VALUES (?, ?, ?);

-- name: select_next_job
SELECT * FROM next_job;

-- name: replace_job
-- Here and for payloads and tasks: quicker than an upsert, as nothing of the old row has to be read.
REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_job
-- With its payload and its tasks.
DELETE FROM jobs WHERE job = ?;
DELETE FROM job_payloads WHERE job = ?;
DELETE FROM tasks WHERE job = ?;

-- name: select_jobs
SELECT * FROM jobs ORDER BY job;

-- name: replace_job_payload
REPLACE INTO job_payloads VALUES (?, ?, ?);

-- name: select_job_payloads
SELECT * FROM job_payloads ORDER BY job;

-- name: replace_task
REPLACE INTO tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: select_tasks
SELECT * FROM tasks ORDER BY job, number;
