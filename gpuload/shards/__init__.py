"""Where samples lie: folders and shards are read once into tables of byte ranges, kept in index and manifest files."""
