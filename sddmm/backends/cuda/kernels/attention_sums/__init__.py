"""attention_sums: dK and dV of sparse attention from weights in memory."""
