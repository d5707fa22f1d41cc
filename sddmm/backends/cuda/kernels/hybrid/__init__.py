"""hybrid: dense tiles by a tile kernel, all other nonzeros by row_gather."""
