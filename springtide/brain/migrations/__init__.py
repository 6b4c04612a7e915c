"""Versions of the brain's database, oldest first, under `versions`. `brain.store.migrate` brings a database up to
date.
"""
