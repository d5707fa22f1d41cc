"""The softmax over the nonzeros of each row, and its gradient."""
