"""One small class for each method."""
