"""row_offsets: where each row begins among sorted nonzeros, and whether any is long."""
