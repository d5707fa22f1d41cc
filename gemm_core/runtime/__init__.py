"""Compiling, loading and launching CUDA kernels; knows no operator."""
