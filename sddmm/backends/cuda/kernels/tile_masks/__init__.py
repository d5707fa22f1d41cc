"""tile_masks: which columns of each row of listed tiles hold nonzeros."""
