"""windows: keeps rows of B in shared memory."""
