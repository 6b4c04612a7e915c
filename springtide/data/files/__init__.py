"""Map-style data sets from Parquet, CSV and frames. Start at dataset.py."""
