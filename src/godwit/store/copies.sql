-- The statements of backup and compact: from the attached file `source` into a new one.

-- name: attach
ATTACH DATABASE ? AS source;

-- name: detach
DETACH DATABASE source;

-- name: select_last
SELECT max(first_offset) FROM source.blocks;

-- name: select_sizes
SELECT first_offset, end_offset, length(topics) + length(body) FROM source.blocks
WHERE first_offset >= ? ORDER BY first_offset LIMIT ?;

-- name: copy_blocks
INSERT INTO main.blocks SELECT * FROM source.blocks WHERE first_offset BETWEEN ? AND ? ORDER BY first_offset;

-- name: copy_last_blocks
INSERT INTO main.blocks SELECT * FROM source.blocks WHERE first_offset >= ? ORDER BY first_offset;

-- name: count_blocks
SELECT count(*) FROM main.blocks;
