"""The backends: each is one way to compute a product at the nonzeros of a pattern."""
