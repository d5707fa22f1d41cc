"""spmm_weights: weights in the order in which spmm_gather reads them."""
