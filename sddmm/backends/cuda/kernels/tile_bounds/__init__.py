"""tile_bounds: the row offsets of listed tiles."""
