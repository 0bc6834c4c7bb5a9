"""Many runs side by side: the grid of a table, its results, statistics and tables."""
