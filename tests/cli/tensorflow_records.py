"""TensorFlow in a process of its own, beside no other compiler: reads or writes TFRecords and says what it saw.

    python tensorflow_records.py read SHARD... < {"feature": "string" | "int64" | "float32" | "int64[]" | "float32[]"}
    python tensorflow_records.py write PATH "" | GZIP | ZLIB < [{"feature": value}]

JSON both ways; bytes are {"hex": ...}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}

import tensorflow as tf  # noqa: E402  (the settings are read when it is imported)


def read(shards: list[str], schema: dict[str, str]) -> list[dict[str, Any]]:
    """All records, through tf.data and parse_example."""
    features = {
        name: tf.io.RaggedFeature(kind[:-2]) if kind.endswith("[]") else tf.io.FixedLenFeature([], kind)
        for name, kind in schema.items()
    }
    found = []
    for batch in tf.data.TFRecordDataset(shards).batch(4):
        parsed = {name: column.numpy() for name, column in tf.io.parse_example(batch, features).items()}
        for row in range(len(batch)):
            values = {name: column[row] for name, column in parsed.items()}
            found.append({n: {"hex": v.hex()} if isinstance(v, bytes) else v.tolist() for n, v in values.items()})
    return found


def write(path: str, compression: str, rows: list[dict[str, Any]]) -> None:
    with tf.io.TFRecordWriter(path, compression) as writer:
        for row in rows:
            features = tf.train.Features(feature={name: feature(value) for name, value in row.items()})
            writer.write(tf.train.Example(features=features).SerializeToString())


def feature(value: Any) -> tf.train.Feature:
    if isinstance(value, dict):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes.fromhex(value["hex"])]))
    values = value if isinstance(value, list) else [value]
    if any(isinstance(v, float) for v in values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


if __name__ == "__main__":
    given = json.load(sys.stdin)
    if sys.argv[1] == "read":
        json.dump(read(sys.argv[2:], given), sys.stdout)
    else:
        write(sys.argv[2], sys.argv[3], given)
