"""attention_scores: sparse attention in two steps, an SDDMM for the scores, then softmax and V."""
