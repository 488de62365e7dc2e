"""The work of clients: honest, private or poisoned."""
