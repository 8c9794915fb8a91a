"""Values that every layer shares: references, plans, batches, geometry, errors. Imports nothing else of gpuload."""
