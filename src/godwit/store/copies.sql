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

-- name: delete_changed_blocks
-- Blocks that retention has deleted or rewritten since they were copied.
DELETE FROM main.blocks WHERE NOT EXISTS (
    SELECT 1 FROM source.blocks AS other WHERE other.first_offset = blocks.first_offset
    AND other.end_offset = blocks.end_offset AND other.topics = blocks.topics
);

-- name: copy_missing_blocks
INSERT INTO main.blocks SELECT * FROM source.blocks AS other
WHERE NOT EXISTS (SELECT 1 FROM main.blocks WHERE first_offset = other.first_offset) ORDER BY first_offset;

-- name: count_blocks
SELECT count(*) FROM main.blocks;
