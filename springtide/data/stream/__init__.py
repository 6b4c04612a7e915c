"""Streams of records: partitions with offsets, in a folder (log/) or at a broker (kafka/), with the interface in
stream.py.

Path of a record: produce.py makes it, envelope.py wraps it, log/writer.py appends it, and log/reader.py reads it as
`Records`. Then record_filter.py removes records that cannot be trained, and dead_letters.py keeps these. decode.py
makes a batch of the rest.
"""
