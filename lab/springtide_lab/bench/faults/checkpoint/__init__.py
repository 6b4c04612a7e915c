"""What checkpoints and restores cost."""
