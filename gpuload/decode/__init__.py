"""E. From encoded bytes to the pixels of the region that is wanted: the header reader, and one file a decoder."""
