"""B, F. What happens to pixels: a transform read as frozen operations, its draws, and the batch's memory filled."""
