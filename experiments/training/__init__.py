"""The objective `training`: sddmm with its gradients, as one step of training computes them."""
