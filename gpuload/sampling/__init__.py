"""A. Which samples, in which order: pure functions of (seed, epoch, length)."""
