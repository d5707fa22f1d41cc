"""attention_delta: the sums that attention_gradient needs of each row."""
