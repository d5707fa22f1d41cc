"""block_mma: full blocks by mma, straight from global memory."""
