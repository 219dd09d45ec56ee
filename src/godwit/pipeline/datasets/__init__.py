"""The tables of the pipeline, one a file: what a row is, its columns, how it is made, and what must hold of it."""
