"""tile_lines: which positions of each line of listed tiles hold nonzeros."""
