"""Nine recommendation models."""
