"""send_rows: chosen rows of a dense operand, into the memory of another GPU."""
