"""Stream training in a worker: leases of partitions (stream_client.py), reading (stream_reader.py), batch boundaries
(batch_claims.py) and batches for the loop (stream_batches.py).
"""
