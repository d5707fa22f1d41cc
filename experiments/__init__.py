"""The laboratory: `python -m experiments` runs, records and reports measurements of SDDMM."""
