"""gather_lines: a line of the rows of many nonzeros at a time."""
