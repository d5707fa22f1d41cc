"""windows: rows of B held in shared memory."""
