"""The `springtide` command: `app` declares the commands, and each command has its own module."""
