"""gather_rows: a warp per row of a CSR pattern."""
