"""Streams: partitions of records with offsets, on disk (log/) or at a broker (kafka/); stream.py is what they share.

Walk of a record: produce.py makes it, envelope.py wraps it, log/writer.py keeps it, log/reader.py finds it again as
`Records`, data/stream/record_filter.py sorts out what cannot be trained (dead_letters.py keeps that), decode.py makes a
batch of the rest.
"""
