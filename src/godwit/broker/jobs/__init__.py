"""Jobs: controllers submit them, the broker divides them into tasks and leases the tasks to workers.

The core decides and knows no wire message: `model` (jobs, tasks, workers, states), `queue` (order within a kind of
work), `dispatch` (which worker gets which task), `lifecycle` (how jobs and tasks start and end), `job_table` (limits,
and stored rows), `scheduler` (all of it together), `job_commits` (from the scheduler into the log).

The native protocol is in `work_channel` (records on work channels), `notifier` (records to clients) and `job_requests`
(control messages). `service` connects the two and is the only module that the rest of the broker calls.
"""
