"""Local training, objectives and the server's workbench."""
