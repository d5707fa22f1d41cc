"""tile_warp: small dense tiles, one warp each."""
