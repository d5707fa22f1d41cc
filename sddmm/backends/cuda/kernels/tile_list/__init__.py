"""tile_list: the tiles of a pattern that are not empty."""
