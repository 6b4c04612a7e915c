"""A user module that functions of other modules read."""

MODE = 1
UNREAD = [1]
