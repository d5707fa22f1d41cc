"""tile_simt: dense tiles of exact float32 by multiply-adds."""
