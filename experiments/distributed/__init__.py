"""The objective `distributed`: sddmm, spmm and a training step on the ranks of torchrun."""
