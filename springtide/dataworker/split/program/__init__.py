"""Programs of recorded torch calls: data workers run the moved calls, and the trainer replays their results."""
