"""Streams: partitions of records with offsets, in a folder (log/) or at a broker (kafka/); stream.py is their
interface.

Walk of a record: produce.py makes it, envelope.py wraps it, log/writer.py appends it, log/reader.py reads it as
`Records`. Then record_filter.py sorts out records that cannot be trained (dead_letters.py keeps them), and decode.py
makes a batch of the rest.
"""
