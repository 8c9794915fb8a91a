"""Reading: byte ranges of files, merged (coalesce.py) and read locally or through fsspec (reader.py)."""
