"""The CPU backend: kernels compiled by numba."""
