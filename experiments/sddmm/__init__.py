"""SDDMM as an objective: this package beside its peers, each a file of `methods`."""
