"""weights_by_nonzero: the weights of several heads, those of each nonzero side by side."""
