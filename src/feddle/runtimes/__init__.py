"""What drives the server core: a simulation on a virtual clock, or a real federation."""
