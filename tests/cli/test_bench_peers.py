"""WebDataset and MosaicML streaming as they are raced: their own shards with the same bytes, Pillow's own pixels."""

from __future__ import annotations

import time
from dataclasses import asdict
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpuload.cli.bench import subjects
from gpuload.cli.bench.data import look_at, plain_bytes
from gpuload.cli.bench.worker import Worker
from gpuload.core.errors import ConfigError

COUNT = 11


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, sizes that differ."""
    root = tmp_path_factory.mktemp("images")
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (7, 9, 3), np.uint8)
        out = BytesIO()
        Image.fromarray(coarse).resize((260 + 7 * i, 330 - 5 * i), Image.Resampling.BICUBIC).save(out, "JPEG")
        (root / f"class{i % 2}").mkdir(exist_ok=True)
        (root / f"class{i % 2}" / f"{i:02d}.jpg").write_bytes(out.getvalue())
    return root


@pytest.mark.parametrize("name", subjects.OWN_FORMAT)
def test_a_peer_without_a_place_for_its_shards_says_so(folder, name):
    setting = subjects.Setting(look_at(str(folder)), "cpu", 1, 4)
    with pytest.raises(ConfigError, match=f"{name} needs a folder"):
        subjects.scratch_folder(setting, name)


def opened(name: str, folder: Path, scratch: Path) -> Worker:
    pytest.importorskip(subjects.SUBJECTS[name].module)
    setting = subjects.Setting(look_at(str(folder)), "cpu", 2, 4, scratch=str(scratch))
    worker = Worker()
    worker.open(name, asdict(setting), time.time(), "train", 24)
    return worker


@pytest.mark.full
@pytest.mark.parametrize("name", subjects.OWN_FORMAT)
def test_a_peer_gives_pillows_pixels_the_right_labels_and_whole_epochs(folder, tmp_path, name):
    worker = opened(name, folder, tmp_path)
    check = worker.check(COUNT)
    assert check["wrong_labels"] == 0 and check["images"] == COUNT
    assert check["worst"] < 1e-3
    for _ in range(2):
        epoch = worker.run_epoch(0.0)
        assert (sum(epoch.images), len(epoch.images)) == (24, 6)
    assert worker.loader.packed_s > 0


@pytest.mark.full
def test_webdataset_shards_hold_every_sample_once_with_its_bytes(folder, tmp_path):
    import tarfile

    worker = opened("webdataset", folder, tmp_path)
    found = []
    for shard in worker.loader.files:
        with tarfile.open(shard) as archive:
            members = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        found += [(data, int(members[f"{name[:-4]}.cls"])) for name, data in members.items() if name.endswith(".jpg")]
    plain = plain_bytes(look_at(str(folder)))
    assert sorted(found) == sorted(plain[i] for i in range(COUNT))


@pytest.mark.full
def test_streaming_shards_hold_every_sample_once_with_its_bytes(folder, tmp_path):
    worker = opened("streaming", folder, tmp_path)
    dataset = worker.loader.loader.dataset
    found = [(dataset[i]["image"], dataset[i]["label"]) for i in range(dataset.num_samples)]
    plain = plain_bytes(look_at(str(folder)))
    assert sorted(found) == sorted(plain[i] for i in range(COUNT))
