"""The GEMM ladder: every variant of gemm_core against cuBLAS, verified, interleaved, recorded."""
