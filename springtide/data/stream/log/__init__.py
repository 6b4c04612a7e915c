"""A partitioned log in a folder: streams without a broker, for one machine. The format: docs/design/streams.md.

layout.py has the names and formats, heads.py the current begin and end of each partition, segment.py the index of a
segment and retention. writer.py appends, reader.py reads, stream.py is the whole.
"""
