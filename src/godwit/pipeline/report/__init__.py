"""The report on a lake: one page, from reading the tables (`figures`, `series`) to drawing them (`svg`, `page`)."""
