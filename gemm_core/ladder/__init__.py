"""The GEMM kernels, from the naive one to wgmma, and the `gemm` that chooses among them."""
