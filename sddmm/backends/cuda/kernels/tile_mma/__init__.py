"""tile_mma: dense tiles by mma."""
