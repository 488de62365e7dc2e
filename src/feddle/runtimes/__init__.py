"""Runtimes, which run the server: a simulation on a virtual clock, or a real federation."""
