"""G, H. Where batches live and how they are handed over: one protocol, a host and a CUDA implementation."""
