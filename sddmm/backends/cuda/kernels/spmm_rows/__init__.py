"""spmm_rows: products of patterns whose rows are all short, a group of lanes for each row."""
