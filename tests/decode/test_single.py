"""gpuload.decode_jpeg against Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

import gpuload
from tests.augment.pictures import encoded, every_kind, picture

FILTERS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


@pytest.mark.parametrize("name", every_kind())
def test_every_kind_is_decoded_as_by_pillow(name: str):
    data = every_kind()[name]
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for form in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(gpuload.decode_jpeg(form), wanted)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_crop_and_size_are_pillows(interpolation: str):
    data = encoded(picture(83, 61))
    image = Image.open(io.BytesIO(data)).convert("RGB").crop((7, 5, 7 + 41, 5 + 50))
    assert np.array_equal(gpuload.decode_jpeg(data, crop=(7, 5, 41, 50)), np.asarray(image))
    wanted = image.resize((32, 70), Image.Resampling[interpolation.upper()])
    got = gpuload.decode_jpeg(data, (7, 5, 41, 50), (32, 70), interpolation=interpolation)
    assert np.array_equal(got, np.asarray(wanted))


def test_what_cannot_be_decoded_says_so_as_pillow_does():
    with pytest.raises(gpuload.SampleError) as caught:
        gpuload.decode_jpeg(b"no image")
    assert isinstance(caught.value, UnidentifiedImageError)
    with pytest.raises(OSError, match="truncated"):
        gpuload.decode_jpeg(encoded(picture(64, 64))[:-400])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"crop": (0, 0, 65, 4)}, "does not lie within the 64 x 48 image"),
        ({"crop": (-1, 0, 4, 4)}, "does not lie within"),
        ({"size": (0, 4)}, "size must be"),
        ({"interpolation": "best"}, "interpolation must be"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict, told: str):
    with pytest.raises(gpuload.ConfigError, match=told):
        gpuload.decode_jpeg(encoded(picture(64, 48)), **arguments)
