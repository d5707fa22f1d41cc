"""The statistics of tiles: how many hold how many nonzeros."""
