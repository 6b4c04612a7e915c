"""One worker of four is throttled."""
