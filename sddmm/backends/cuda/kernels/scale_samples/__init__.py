"""scale_samples: samples times S's values, after a kernel that does not multiply by them."""
