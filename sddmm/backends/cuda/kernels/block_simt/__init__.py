"""block_simt: full blocks in exact float32."""
