-- The statements of retention. See schema_1.sql for what the columns mean.

-- name: select_spans
-- Small columns and the body's length only: neither touches the pages of a body.
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

-- name: select_newest
SELECT max(first_offset) FROM blocks;

-- name: select_used_pages
SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count;
