"""Several brokers with one log: the records of the replicated log, the fold over them, and the states of a node."""
