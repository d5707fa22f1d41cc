"""Sparsity patterns, their index tensors, and the containers they come in."""
