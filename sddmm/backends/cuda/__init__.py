"""The CUDA backend: planning, and the kernels."""
