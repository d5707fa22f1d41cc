"""softmax_shares: the shares of a pattern whose rows the blocks of row_softmax compute."""
