"""Where samples come from and how they are cut: source.py reads them, shards.py cuts them, book.py hands them out."""
