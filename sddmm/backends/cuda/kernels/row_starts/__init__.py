"""row_starts: where each row begins among sorted nonzeros, and whether any is long."""
