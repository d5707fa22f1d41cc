"""The bench: it times, verifies, records and reports what an objective describes."""
