"""A run: plan, problem, rounds, folder, checkpoint."""
