"""`gpuload tune`: measures, chooses by `gpuload/tune/`, and verifies on the real engine.

Owns everything that takes time: running loaders, standing in for a training step, running the user's script.
"""
