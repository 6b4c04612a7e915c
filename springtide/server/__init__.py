"""The parameter server process: slots, migration, checkpoints, mirrors, restore. The server is the last stop on the
path of a sample.
"""
