"""attention_tile: sparse attention by dense tiles."""
