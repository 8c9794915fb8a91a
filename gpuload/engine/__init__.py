"""The one engine: stages, their threads and queues, order of delivery, shutdown, statistics. Knows no torch."""
