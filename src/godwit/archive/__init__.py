"""The archive: a process beside the broker that serves the log's past as Arrow over Flight, and takes staged writes."""
