"""A partitioned log in a folder: streams without a broker, on a single machine. Format: docs/design/streams.md.

layout.py has names and formats, heads.py the current begin and end of each partition, segment.py the index of a segment
and retention. writer.py appends, reader.py reads, stream.py is the `Stream`.
"""
