"""The project's own comparison (loaders.py) and what only a GPU can show (gpu.py). Uses gpuload's public API alone.

But for gpu_jobs.py and gpu_kernels.py, which look at single kernels.
"""
