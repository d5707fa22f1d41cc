"""The operators, one file each, and what torch needs to know of them."""
