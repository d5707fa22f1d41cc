"""spmm_windows: products by windows of rows of X in shared memory."""
