"""Versions of the brain's database, oldest first, under `versions`. `brain.versioning` brings a database up to date."""
