"""Streams of records: partitions with offsets, in a folder (log/) or at a broker (kafka/). stream.py has the interface.

Path of a record: producer.py wraps the record, log/writer.py appends it, and log/reader.py reads it as `Records`.
record_filter.py removes untrainable records, and decode.py makes a batch of the rest.
"""
