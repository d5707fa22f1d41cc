"""attention_tile_gradient: the gradients of attention over masks made of tiles."""
