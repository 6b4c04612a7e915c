"""Pure. bsp groups: formation, rendezvous, staleness."""
