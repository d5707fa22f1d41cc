"""tile_wmma: dense tiles by wmma."""
