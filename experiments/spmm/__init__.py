"""The objective `spmm`: the product of a sparse and a dense matrix, and that with the transpose."""
