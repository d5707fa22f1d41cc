"""spmm_merge: the second pass of spmm_gather, which adds pieces of rows."""
