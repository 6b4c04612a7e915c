"""A module of the user's, which functions of others read."""

MODE = 1
UNREAD = [1]
