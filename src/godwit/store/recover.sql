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
    (SELECT ifnull(max(floor), 0) FROM marks WHERE floor <= ?1),
    (SELECT ifnull(max(first_offset) + 1, 0) FROM epochs WHERE first_offset < ?1)
);

-- name: delete_epochs
DELETE FROM epochs;

-- name: delete_meta
DELETE FROM meta;

-- name: delete_impossible_jobs
-- Numbers that no log of ours has.
DELETE FROM next_job WHERE job > ?;
DELETE FROM jobs WHERE job > ?;
DELETE FROM job_payloads WHERE job > ?;
DELETE FROM tasks WHERE job > ?;

-- name: select_known_job
-- The highest number that a job can have had, by all that is kept.
SELECT max(
    (SELECT ifnull(max(job) - 1, 0) FROM next_job),
    (SELECT ifnull(max(job), 0) FROM jobs),
    (SELECT ifnull(max(job), 0) FROM job_payloads),
    (SELECT ifnull(max(job), 0) FROM tasks)
);

-- name: delete_torn_jobs
-- A job that has lost its payload cannot be done, one that is done and has lost a task has not all its results, and what
-- has lost its job belongs to nothing. A job that goes on does a lost task again.
DELETE FROM jobs WHERE job NOT IN (SELECT job FROM job_payloads)
    OR state = 'done' AND agreed <> (SELECT count(*) FROM tasks WHERE tasks.job = jobs.job);
DELETE FROM job_payloads WHERE job NOT IN (SELECT job FROM jobs);
DELETE FROM tasks WHERE job NOT IN (SELECT job FROM jobs);
