"""The made images are like ImageNet's in what a decoder notices, and the same in folders and shards."""

from __future__ import annotations

import tarfile
from pathlib import Path

from PIL import Image

from bench import gpu_images
from gpuload.cli.demo_data import SIZES


def files_of(made: gpu_images.Made) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in made.folder.rglob("*.jpg")}


def test_they_have_imagenets_bytes_sizes_and_samplings(made: gpu_images.Made):
    files = files_of(made)
    assert len(files) == made.images
    assert 90_000 < made.bytes < 130_000
    assert made.bytes == sum(map(len, files.values())) / len(files)
    images = [Image.open(path) for path in made.folder.rglob("*.jpg")]
    assert {image.size for image in images} <= set(SIZES)
    assert {image.layer[0][1:3] for image in images} == {(1, 1), (2, 2)}  # type: ignore[attr-defined]


def test_shards_hold_the_same_images_with_their_classes(made: gpu_images.Made):
    found, labels = {}, {}
    for shard in sorted(made.shards.glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                name = Path(member.name)
                (labels if name.suffix == ".cls" else found)[name.stem] = file.read()
    assert {f"{key}.jpg": data for key, data in found.items()} == files_of(made)
    for path in made.folder.rglob("*.jpg"):
        assert path.parent.name == f"class{int(labels[path.stem])}"


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others():
    canvas = gpu_images.canvas(0, (900, 700))
    assert gpu_images.jpeg(canvas, (4,)) == gpu_images.jpeg(canvas, (4,)) != gpu_images.jpeg(canvas, (5,))


def test_the_large_one_has_the_size_that_was_asked_for(tmp_path: Path):
    gpu_images.large_jpeg(tmp_path / "large.jpg", (2100, 1600))
    assert Image.open(tmp_path / "large.jpg").size == (2100, 1600)
