-- The statements on a log's file, by name. See schema.sql for the meaning of the columns.

-- name: select_random
SELECT randomblob(?);

-- name: insert_meta
INSERT INTO meta VALUES (?, ?, ?);

-- name: select_meta
SELECT key, value, seal FROM meta WHERE key <> 'end_offset';

-- name: replace_meta
REPLACE INTO meta VALUES (?, ?, ?);

-- name: select_place
-- How far a replica has followed its cluster (godwit.store.replica).
SELECT key, value, seal FROM meta WHERE key = 'place';

-- name: delete_meta
DELETE FROM meta;

-- name: select_end_offset
-- Of deleted blocks. The newest existing block may end later.
SELECT value FROM meta WHERE key = 'end_offset';

-- name: insert_block
INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: select_block_at
-- The block that holds an offset, or else the last one before it. As in the statements below, the body is read
-- separately (blob_open), and the topics only if needed: both may be on pages of their own, which are not read then.
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

-- name: select_newest_block
SELECT max(first_offset) FROM blocks;

-- name: select_time_before
-- Receive time of the newest block before an offset.
SELECT ifnull((SELECT until_us FROM blocks WHERE first_offset < ? ORDER BY first_offset DESC LIMIT 1), 0);

-- name: select_disorder
-- Among the newest blocks, one that is followed by one with a lower offset: its page is damaged.
SELECT first_offset FROM (
    SELECT first_offset, lag(first_offset, 1, 9223372036854775807) OVER () AS offset_behind
    FROM (SELECT first_offset FROM blocks ORDER BY first_offset DESC LIMIT ?)
)
WHERE first_offset >= offset_behind LIMIT 1;

-- name: select_given_up
-- Whether the log contains a range as lost: a block without a body, and without topics.
SELECT count(*) FROM blocks WHERE first_offset = ? AND end_offset = ? AND topics = ? AND body = x'';

-- name: select_retention_blocks
SELECT first_offset, end_offset, received_us, until_us, seal, topics, length(body) FROM blocks
WHERE first_offset >= ? ORDER BY first_offset LIMIT ?;

-- name: select_body
SELECT body FROM blocks WHERE first_offset = ?;

-- name: delete_block
DELETE FROM blocks WHERE first_offset = ?;

-- name: replace_block
UPDATE blocks SET first_offset = ?, end_offset = ?, received_us = ?, until_us = ?, seal = ?, topics = ?,
    body = ?
WHERE first_offset = ?;

-- name: select_used_pages
SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count;

-- name: upsert_floor
INSERT INTO marks VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET floor = excluded.floor, seal = excluded.seal;

-- name: select_floors
SELECT * FROM marks ORDER BY pattern;

-- name: select_highest_floor
SELECT ifnull(max(floor), 0) FROM marks;

-- name: insert_epoch
INSERT INTO epochs VALUES (?, ?, ?, ?);

-- name: delete_old_epochs
-- All but the newest ones: the parameter is their number minus one.
DELETE FROM epochs WHERE first_offset < (SELECT first_offset FROM epochs ORDER BY first_offset DESC LIMIT 1 OFFSET ?);

-- name: delete_epochs
DELETE FROM epochs;

-- name: select_epochs
SELECT * FROM epochs ORDER BY first_offset;

-- name: replace_state
-- Quicker than an upsert, because the old row is not read.
REPLACE INTO state VALUES (?, ?, ?, ?);

-- name: delete_state
DELETE FROM state WHERE kind = ? AND key = ?;

-- name: delete_state_range
DELETE FROM state WHERE kind = ? AND key >= ? AND key < ?;

-- name: select_state
SELECT kind, key, value, checksum FROM state ORDER BY kind, key;

-- name: select_state_of_kind
SELECT kind, key, value, checksum FROM state WHERE kind = ? ORDER BY key;

-- name: select_has_state
SELECT EXISTS (SELECT 1 FROM state);
