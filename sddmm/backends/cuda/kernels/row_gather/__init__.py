"""row_gather: equally many nonzeros per warp."""
