"""Pictures of records. `figures` in figures.py draws all of an objective; it needs matplotlib."""
