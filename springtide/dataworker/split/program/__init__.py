"""The recorded calls as two programs: what data workers run, and the calls that the trainer replays."""
