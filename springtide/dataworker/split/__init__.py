"""Split `forward()`: data workers run the part without parameters, and the trainer replays its results."""
