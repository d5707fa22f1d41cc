"""place_values: values of some nonzeros, stored where those nonzeros stand among all."""
