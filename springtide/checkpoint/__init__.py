"""Checkpoints: slot images in segment files, and a manifest that says which of them together are the job.

A walk: `segments` writes what a server copies, `cover` puts the servers' words together, `writer` publishes the
`manifest`, `reader` finds the newest one that is whole. Where they lie is a `places.Place`: a folder or an fsspec URL.
"""
