"""attention_gather: sparse attention, equally many nonzeros and rows per warp."""
