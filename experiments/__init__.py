"""The laboratory: `python -m experiments` verifies, measures, records and reports."""
