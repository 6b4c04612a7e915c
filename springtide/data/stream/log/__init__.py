"""A partitioned log in a folder: streams with no broker, for one machine. The format: docs/design/streams.md.

layout.py has the names and formats, heads.py what readers look at to see what is new, segment.py the index of a
segment, writer.py appends, reader.py reads, retention.py decides what is deleted, stream.py is the whole.
"""
