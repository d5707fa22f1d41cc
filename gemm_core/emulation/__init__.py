"""CUDA kernels on the CPU: g++ compiles the real source against headers that stand in for CUDA's.

Each thread of a block is a fiber, and blocks run one after the other. This shows every index, guard
and tail of a kernel without a GPU; it cannot show races.
"""
