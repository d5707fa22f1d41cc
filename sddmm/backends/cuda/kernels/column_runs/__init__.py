"""column_runs: a look at some columns of a pattern."""
