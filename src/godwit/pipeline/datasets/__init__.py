"""The tables of the pipeline, one per file: grain, columns, how rows are made, and conditions that each row meets."""
