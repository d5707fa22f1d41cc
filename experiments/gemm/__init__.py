"""GEMM as an objective: every variant of gemm_core is measured against cuBLAS."""
