"""What the brain decides from: cluster state, triggers, algorithms, pledges."""
