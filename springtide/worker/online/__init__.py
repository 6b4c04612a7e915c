"""A stream in a worker: stream_client.py gets partitions, stream_reader.py reads them, batch_claims.py cuts batches,
stream_batches.py hands on.
"""
