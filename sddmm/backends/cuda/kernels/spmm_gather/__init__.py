"""spmm_gather: equally many nonzeros and rows per warp."""
