"""tile_wgmma: dense tiles by wgmma."""
