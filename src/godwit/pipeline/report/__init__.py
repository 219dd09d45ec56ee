"""The report on a lake: one page, from data (`figures`, `series`) to drawings (`svg`) and HTML (`page`)."""
