"""Commands for streams: `produce`, `stream`, `forecast`."""
