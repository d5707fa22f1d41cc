"""tile_wgmma_async: dense tiles by wgmma, stored by warps of their own."""
