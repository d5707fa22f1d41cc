"""gather_csr: a first call in one launch."""
