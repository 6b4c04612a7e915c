"""A partitioned log in a folder: streams without a broker, on a single machine. Format: docs/design/streams.md."""
