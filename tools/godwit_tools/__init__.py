"""The commands `godwit sim` and `godwit bench`, which a development checkout adds to the command line."""
