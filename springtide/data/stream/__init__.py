"""Streams of records: partitions with offsets, in a folder (log/) or at a broker (kafka/). The interface is stream.py.

Path of a record: producer.py makes and wraps it, log/writer.py appends it, log/reader.py reads it as `Records`,
record_filter.py removes what cannot be trained, and decode.py makes a batch of the rest.
"""
