"""spmm_shares: the shares of a pattern that the warps of spmm_gather sum."""
