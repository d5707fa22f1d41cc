"""spmm_tile_sums: the sum of what several blocks computed of the same rows."""
