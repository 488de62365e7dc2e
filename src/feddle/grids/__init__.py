"""Tables and figures as grids of runs."""
