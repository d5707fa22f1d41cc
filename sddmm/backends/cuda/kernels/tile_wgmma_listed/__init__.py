"""tile_wgmma_listed: dense tiles by wgmma, stored from lists of their nonzeros."""
