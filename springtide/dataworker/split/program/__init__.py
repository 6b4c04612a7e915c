"""Turn recorded torch calls into two programs: data workers run the moved calls, and the trainer replays their
results.
"""
