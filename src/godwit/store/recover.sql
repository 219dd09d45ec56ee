-- The statements of recover, on the new file.

-- name: select_roots
SELECT name, rootpage FROM sqlite_schema WHERE type = 'table';

-- name: count_columns
SELECT count(*) FROM pragma_table_info(?);

-- name: select_time_before
-- When the newest block before an offset was received.
SELECT ifnull((SELECT until_us FROM blocks WHERE first_offset < ? ORDER BY first_offset DESC LIMIT 1), 0);

-- name: select_known_end
-- Offsets that somebody had got to, if they can be.
SELECT max(
    (SELECT ifnull(max(resume_at), 0) FROM feeds WHERE resume_at <= ?1),
    (SELECT ifnull(max("offset") + 1, 0) FROM retained WHERE "offset" < ?1),
    (SELECT ifnull(max(floor), 0) FROM marks WHERE floor <= ?1)
);

-- name: delete_meta
DELETE FROM meta;
