"""What every benchmark uses: alternating rounds, the machine's state, reports, peers."""
