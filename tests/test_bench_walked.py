"""The share of a scan that crops walk: against a walk MCU by MCU, and against the kernels' own plan."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gpuload.kernels import jpeg_header as jpeg
from gpuload.kernels.jpeg_plan import region_of
from PIL import Image

from bench import walked
from bench.walked import Frame, Window

WINDOWS = [
    Window(5, 4, 2, 1, 4, 3),
    Window(7, 3, 0, 0, 7, 3),
    Window(1, 6, 0, 2, 1, 5),
    Window(9, 9, 8, 8, 9, 9),
    Window(13, 6, 5, 1, 6, 6),
]


def mcu_by_mcu(window: Window, spacing: int | None) -> int:
    """Every MCU of the crop's rows is reached on foot from the last point, unless one is on the way."""
    visited: set[int] = set()
    for row in range(window.top, window.bottom):
        first = row * window.wide + window.left
        start = first
        while start and not (spacing and start % spacing == 0):
            start -= 1
        visited |= set(range(start, row * window.wide + window.right))
    return len(visited)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("spacing", [None, 1, 2, 3, 4, 7, 100])
def test_each_mcu_on_the_way_is_walked_once(window, spacing):
    assert walked.walked(window, spacing) == mcu_by_mcu(window, spacing)


def test_with_a_point_at_every_mcu_the_crop_alone_is_walked():
    assert [walked.walked(window, 1) for window in WINDOWS] == [walked.needed(window) for window in WINDOWS]


@pytest.mark.parametrize(("h", "v"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_windows_are_the_regions_that_the_kernels_decode(h, v):
    width, height = 333, 210
    header = np.zeros(jpeg.HEADER_SIZE, np.int32)
    header[[jpeg.H_MAX, jpeg.V_MAX, jpeg.WIDTH, jpeg.HEIGHT]] = h, v, width, height
    header[[jpeg.MCUS_WIDE, jpeg.MCUS_HIGH]] = -(-width // (8 * h)), -(-height // (8 * v))
    draw = np.random.default_rng(0)
    for _ in range(50):
        x, y = int(draw.integers(width)), int(draw.integers(height))
        w, high = int(draw.integers(1, width - x + 1)), int(draw.integers(1, height - y + 1))
        region = region_of.py_func(header, x, y, x + w, y + high)
        found = walked.window_of(Frame(width, height, 8 * h, 8 * v, 9000), x, y, w, high)
        assert (found.left, found.top) == (region.mcu_left, region.mcu_top)
        assert (found.right - found.left, found.bottom - found.top) == (region.mcus_wide, region.mcus_high)
        assert (found.wide, found.high) == (header[jpeg.MCUS_WIDE], header[jpeg.MCUS_HIGH])


@pytest.mark.parametrize(("nbytes", "spacing"), [(10**6, 4), (238 * 100, 12), (238 * 50, 20), (1, 1000)])
def test_points_stand_as_close_as_two_hundredths_of_the_file_allow(nbytes, spacing):
    window = walked.window_of(Frame(320, 200, 8, 8, nbytes), 0, 0, 8, 8)  # 1000 MCUs; 238 bytes of a file buy a point
    assert window.spacing == spacing


def test_the_command_leaves_out_what_is_not_sequential_and_repeats(tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    for subsampling in range(3):
        Image.fromarray(noise).save(tmp_path / f"{subsampling}.jpg", subsampling=subsampling)
    Image.fromarray(noise[..., 0]).save(tmp_path / "grey.jpg")
    Image.fromarray(noise).save(tmp_path / "progressive.jpg", progressive=True)
    Image.fromarray(noise).save(tmp_path / "other.jpg", format="PNG")
    printed = []
    for _ in range(2):
        assert walked.main([str(tmp_path), "--json", str(tmp_path / "lines")]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert printed[0].startswith("4 photographs, 20 crops each")
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    share = {line["case"]: line["share"] for line in lines}
    assert lines[: len(share)] == lines[len(share) :]
    spaced = [share[f"every {spacing} MCUs"] for spacing in walked.SPACINGS]
    assert 1 > share["no index"] > spaced[0] > spaced[1] > spaced[2] > spaced[3] > share["the crop itself"] > 0.3


def test_an_mcu_is_as_large_as_its_components_ask(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
    sides = []
    for subsampling in range(3):
        Image.fromarray(noise).save(tmp_path / "x.jpg", subsampling=subsampling)
        frame = walked.frame_of(tmp_path / "x.jpg")
        assert frame is not None and (frame.width, frame.height) == (50, 30)
        sides.append((frame.mcu_width, frame.mcu_height))
    assert sides == [(8, 8), (16, 8), (16, 16)]


def test_without_photographs_it_says_what_to_give(tmp_path, capsys):
    assert walked.main([str(tmp_path)]) == 2
    assert "GPULOAD_DATA" in capsys.readouterr().err
