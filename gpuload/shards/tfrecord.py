"""TFRecord shards of tf.train.Example: an image among the features of each record, without TensorFlow.

Owns which feature is the image, the label and the key, what damage costs, and reading the file in windows. Records,
checksums and protocol buffers are kernels/tfrecord.py's. Every byte is read and every checksum compared when the index
is made, and never again: tf.data does it in each epoch.

After a damaged length the next record is looked for, by the checksum of its length, so that damage costs one record;
tf.data loses all that follow. Format: tensorflow.org/tutorials/load_data/tfrecord.
"""

from __future__ import annotations

import numpy as np

from gpuload.core.errors import ShardError
from gpuload.core.location import is_local, shown
from gpuload.core.refs import SAMPLE_REF
from gpuload.shards.columns import IMAGE_NAMES, KEY_NAMES, LABEL_NAMES, as_key, looks_like_image, preferred
from gpuload.shards.expansion import Shard
from gpuload.shards.table import NO_LABEL, ONE, SEVERAL, Finding, SampleTable, ShardScan, Strings, missing
from gpuload.shards.urls import ReadAt, reading

LOCAL_WINDOW_BYTES, REMOTE_WINDOW_BYTES = 3 << 20, 8 << 20
"""Of a local file what stays in the processor's cache until its checksum is known: 41 us a photograph, 55 with 8 MB."""

HEADER_BYTES, CRC_BYTES = 12, 4
WINDOW_RECORDS = 1 << 16
REWRITE = "Write it again, or pass on_error='skip' to use the samples that are whole"


def looks_like_tfrecord(first: bytes) -> bool:
    """Whether a file that begins so holds records: the length of the first one fits its checksum."""
    from gpuload.kernels.tfrecord import DAMAGED, record_length  # here: the compiler takes 0.4 s to import

    return len(first) >= HEADER_BYTES and record_length(np.frombuffer(first, np.uint8), 0) != DAMAGED


def scan_tfrecord(shard: Shard) -> ShardScan:
    """Index one file of records. Raises ShardError where it cannot be read, or no record holds an image."""
    with reading(shard.file, shard.options) as read_at:
        examples = _Examples(shard)
        _read_records(shard, read_at, examples)
    return examples.finish()


def _read_records(shard: Shard, read_at: ReadAt, examples: _Examples) -> None:
    from gpuload.kernels.tfrecord import DAMAGED, FRAME_BYTES, record_length, whole_records

    records = np.empty((WINDOW_RECORDS, 2), np.int64)
    usual_bytes = LOCAL_WINDOW_BYTES if is_local(shard.file) else REMOTE_WINDOW_BYTES
    offset, size, window_bytes = 0, shard.stamp.size, usual_bytes
    while offset < size:
        data = np.frombuffer(read_at(offset, min(window_bytes, size - offset)), np.uint8)
        found = whole_records(data, records)
        length = int(record_length(data, 0)) if len(data) >= HEADER_BYTES else 0
        window_bytes = usual_bytes
        if found:
            examples.add(data, records[:found], offset)
            offset += abs(int(records[found - 1, 1])) + CRC_BYTES
        elif length == DAMAGED:
            examples.lose(f"the length of the record at byte {offset} is damaged (CRC32C)")
            offset = _next_record(read_at, offset + 1, size, window_bytes=usual_bytes)
        elif len(data) == min(usual_bytes, size - offset) and length + FRAME_BYTES <= size - offset:
            window_bytes = length + FRAME_BYTES
        else:
            examples.lose(f"cut off at byte {offset + len(data)}, inside the record that begins at byte {offset}")
            return


def _next_record(read_at: ReadAt, offset: int, size: int, *, window_bytes: int) -> int:
    """Where the next record from `offset` on begins, by the checksum of its length; `size` if there is none."""
    from gpuload.kernels.tfrecord import FRAME_BYTES, next_record

    while size - offset >= FRAME_BYTES:
        data = np.frombuffer(read_at(offset, min(window_bytes, size - offset)), np.uint8)
        step = int(next_record(data, 0, size - offset - FRAME_BYTES))
        if len(data) - step >= HEADER_BYTES:
            return offset + step
        offset += max(step, 1)
    return size


class _Examples:
    """Examples on their way to a table: a row of numbers for each feature, and the keys."""

    def __init__(self, shard: Shard):
        self._shard = shard
        self._keys: list[str] = []
        self._names: dict[bytes, int] = {}
        self._images: set[int] = set()  # names of which some value begins as an image does
        self._key_names = [name.encode() for name in KEY_NAMES]
        self._parts: list[np.ndarray] = []
        self._findings: list[Finding] = []
        self._strange: list[int] = []
        self._records = 0

    def lose(self, problem: str, key: str = "") -> None:
        self._findings.append(Finding(self._shard.url, key, problem, REWRITE))

    def add(self, data: np.ndarray, records: np.ndarray, offset: int) -> None:
        """Records of a window that begins at byte `offset` of the file."""
        from gpuload.kernels import tfrecord as k

        counts = np.empty(len(records), np.int64)
        features = np.empty((16 * len(records), 9), np.int64)
        found = k.window_features(data, records, len(self._keys), features, counts)
        if found > len(features):
            features = np.empty((found, 9), np.int64)
            k.window_features(data, records, len(self._keys), features, counts)
        mine = features[:found].copy()
        self._number_names(data, mine)
        numbers = np.arange(self._records, self._records + len(records))
        self._records += len(records)
        for start in records[counts == k.NOT_WHOLE, 0].tolist():
            self.lose(f"the record at byte {offset + start - HEADER_BYTES} is damaged (CRC32C of its data)")
        self._strange += numbers[counts == k.NOT_AN_EXAMPLE].tolist()
        self._note_images(data, mine)
        self._keys += self._keys_of(data, mine, numbers[counts >= 0])
        mine[:, (k.BODY, k.BODY_END)] += offset
        mine[mine[:, k.KIND] != k.INTS, k.FIRST] += offset
        self._parts.append(mine)

    def _number_names(self, data: np.ndarray, features: np.ndarray) -> None:
        """NAME becomes a number of `_names`, which grows by those that it lacks."""
        from gpuload.kernels import tfrecord as k

        names = np.frombuffer(b"".join(self._names), np.uint8)
        bounds = np.cumsum([0, *map(len, self._names)])
        k.number_names(data, names, bounds, features)
        for number in np.flatnonzero(features[:, k.NAME] < 0).tolist():
            row = features[number]
            at = k.UNKNOWN - row[k.NAME]
            row[k.NAME] = self._names.setdefault(data[at : at + row[k.NAME_LENGTH]].tobytes(), len(self._names))

    def _note_images(self, data: np.ndarray, features: np.ndarray) -> None:
        """The first bytes of values that are not known to be images."""
        from gpuload.kernels import tfrecord as k

        known = np.zeros(len(self._names), np.bool_)
        known[list(self._images)] = True
        mine = features[(features[:, k.KIND] == k.BYTES) & ~known[features[:, k.NAME]]]
        text = data[np.minimum(mine[:, k.FIRST, None] + np.arange(4), len(data) - 1)].tobytes()
        starts = [text[place : place + 4] for place in range(0, len(text), 4)]
        if any(map(looks_like_image, set(starts))):
            names = mine[:, k.NAME].tolist()
            self._images.update(name for name, start in zip(names, starts, strict=True) if looks_like_image(start))

    def _keys_of(self, data: np.ndarray, features: np.ndarray, numbers: np.ndarray) -> list[str]:
        """Of these Examples, which are records `numbers`: what their best feature for it says, else the number."""
        from gpuload.kernels import tfrecord as k

        keys = [""] * len(numbers)
        ranks = np.full(len(self._names), len(self._key_names))
        for rank, name in enumerate(self._key_names):
            if name in self._names:
                ranks[self._names[name]] = rank
        rank_of = ranks[features[:, k.NAME]]
        one = (features[:, k.KIND] == k.BYTES) & (features[:, k.COUNT] == 1) & (rank_of < len(self._key_names))
        mine = features[one][np.argsort(rank_of[one], kind="stable")[::-1]]  # the best of a record comes last
        columns = (mine[:, column].tolist() for column in (k.RECORD, k.FIRST, k.FIRST_LENGTH))
        best = {record - len(self._keys): (first, length) for record, first, length in zip(*columns, strict=True)}
        for row, (first, length) in best.items():
            keys[row] = as_key(data[first : first + length].tobytes().decode("utf-8", "replace"))
        return [key or f"{number:08d}" for key, number in zip(keys, numbers.tolist(), strict=True)]

    def finish(self) -> ShardScan:
        from gpuload.kernels import tfrecord as k

        url, n = self._shard.url, len(self._keys)
        if self._strange:
            if not n:
                problem = "its records are no tf.train.Example, of which gpuload reads the features"
                raise ShardError(shown(url), problem, "Write it again as Examples with a feature image/encoded")
            first = f"{len(self._strange)} records are no tf.train.Example; the first is record {self._strange[0]}"
            self.lose(first)
        if not self._records and not self._findings:
            self._findings.append(Finding(url, "", "it holds no record", note=True))
        features = np.concatenate([*self._parts, np.empty((0, 9), np.int64)])
        columns = {
            name.decode("utf-8", "replace"): features[features[:, k.NAME] == number]
            for name, number in self._names.items()
        }
        images, found = np.zeros(n, SAMPLE_REF), np.zeros(n, np.bool_)
        image_names = self._image_names(columns)
        for name in image_names:
            column = columns[name][columns[name][:, k.KIND] == k.BYTES]
            column = column[~found[column[:, k.RECORD]] & (column[:, k.COUNT] > 0)]
            rows = column[:, k.RECORD]
            images["offset"][rows], images["length"][rows] = column[:, k.FIRST], column[:, k.FIRST_LENGTH]
            found[rows] = True
        if n and not found.any():
            raise ShardError(
                shown(url),
                f"no feature of its Examples holds encoded images. There are: {', '.join(sorted(columns)) or 'none'}",
                "Name data with a feature image/encoded, or write the images as JPEG or PNG",
            )
        for row in np.flatnonzero(~found).tolist():
            self.lose("a record without an image", self._keys[row])
        labels, own = np.full(n, NO_LABEL, np.int64), ""
        for name in preferred(columns, LABEL_NAMES)[::-1]:
            column = columns[name][(columns[name][:, k.KIND] == k.INTS) & (columns[name][:, k.COUNT] == 1)]
            labels[column[:, k.RECORD]] = column[:, k.FIRST]
            own = name if len(column) == len(columns[name]) else own
        members, encodings = {}, {}
        for name, column in sorted(columns.items()):
            if name in image_names[:1]:
                continue
            members[name] = refs = missing(n)
            refs["offset"][column[:, k.RECORD]] = column[:, k.BODY]
            refs["length"][column[:, k.RECORD]] = column[:, k.BODY_END] - column[:, k.BODY]
            encodings[name] = ONE if (column[:, k.COUNT] == 1).all() else SEVERAL
        keys = Strings.of(self._keys)
        table = SampleTable(Strings.of([self._shard.file]), images, labels, keys, members, encodings, label=own)
        return ShardScan(table if found.all() else table.keep(found), tuple(self._findings))

    def _image_names(self, columns: dict[str, np.ndarray]) -> list[str]:
        """Features that hold images, the one to use first: known ones, else those whose values begin as images do."""
        begin_so = [name.decode("utf-8", "replace") for name, number in self._names.items() if number in self._images]
        return preferred(begin_so, IMAGE_NAMES) or begin_so or preferred(columns, IMAGE_NAMES)
