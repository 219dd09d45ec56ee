"""Work: jobs that controllers submit, cut into tasks that are leased to workers."""
