"""tile_wgmma_tf32x3: dense tiles of float32 by 3xTF32 on Hopper."""
