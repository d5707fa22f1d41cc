"""The kernels, one folder each: kernel.cu and what the host does for it."""
