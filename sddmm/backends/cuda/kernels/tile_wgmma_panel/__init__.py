"""tile_wgmma_panel: dense tiles by wgmma for short k, by blocks that keep rows of B."""
