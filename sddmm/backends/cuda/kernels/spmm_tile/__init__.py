"""spmm_tile: products of tiles of weights by tensor cores."""
