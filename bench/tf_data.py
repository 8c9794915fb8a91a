"""tf.data over TFRecords in a process of its own, for bench/packing.py: one thread, nothing parsed, every CRC checked.

    python -m bench.tf_data SHARD...        a line on standard input: go through all of them, in each way

answers `reduce=CPU_SECONDS loop=CPU_SECONDS`: TFRecordDataset counted by a reduction in C++, and by a Python loop.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def ways(shards: Sequence[str]) -> dict[str, Callable[[], int]]:
    """Each returns how many records there were."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    options: Any = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    options.autotune.enabled = False
    records = tf.data.TFRecordDataset(list(shards)).with_options(options)
    return {
        "reduce": lambda: int(records.reduce(tf.constant(0), lambda count, record: count + 1)),
        "loop": lambda: sum(1 for _ in records),
    }


def main(shards: Sequence[str]) -> None:
    found = ways(shards)
    for _ in sys.stdin:
        told = []
        for name, way in found.items():
            began = time.process_time()
            way()
            told.append(f"{name}={time.process_time() - began}")
        sys.stdout.write(" ".join(told) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
