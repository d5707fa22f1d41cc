"""add_rows: sums that arrive from another rank, added to chosen rows."""
