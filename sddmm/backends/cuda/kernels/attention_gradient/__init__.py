"""attention_gradient: the gradients of attention_gather, by rows and by columns."""
