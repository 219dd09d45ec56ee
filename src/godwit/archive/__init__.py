"""The archive: a process beside the broker that serves the log as Arrow over Flight and accepts staged writes."""
