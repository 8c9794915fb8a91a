"""The comparison of fidelities: that its sums are right, that both get the same crops, and that training repeats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench import fidelity, fidelity_loss
from bench.fidelity_loss import QUICK, Crops, Judged, Losses

SIDE = 16


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> list[Path]:
    """Large enough for most crops of 32 x 32 to shrink 3.5 times, with detail that this loses."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(6):
        draw = np.random.default_rng(i)
        coarse = Image.fromarray(draw.integers(0, 256, (9, 12, 3), np.uint8))
        picture = np.asarray(coarse.resize((290 + 7 * i, 300 - 5 * i), Image.Resampling.BICUBIC)).astype(np.int16)
        grain = draw.integers(-9, 10, picture.shape[:2])[..., None]
        Image.fromarray(np.clip(picture + grain, 0, 255).astype(np.uint8)).save(
            folder / f"{i:02d}.jpg", quality=90, subsampling=i % 3
        )
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def shards(photos, tmp_path_factory) -> list[str]:
    return fidelity.packed(photos, tmp_path_factory.mktemp("packed") / "new")


def test_differences_are_of_the_crops_that_differ():
    exact = np.full((4, 3, 20, 20), 100, np.uint8)
    fast = exact.copy()
    fast[1, 0, 0, :3] = [101, 98, 120]
    fast[3, 2] = 99
    found = fidelity.difference([(exact[:2], fast[:2]), (exact[2:], fast[2:])])
    assert found.crops == 0.5
    assert found.mean == pytest.approx((1 + 2 + 20 + 400) / 2400)
    assert found.values == pytest.approx(403 / 2400)
    assert (found.p999, found.worst) == (1, 20)  # of 2400 values, two may be further off


def test_equal_crops_differ_by_nothing():
    same = np.zeros((2, 3, 4, 4), np.uint8)
    assert fidelity.difference([(same, same)]) == fidelity.Difference(0.0, 0.0, 0, 0, 0.0)


def test_differences_wrap_around_nowhere():
    black, white = np.zeros((1, 3, 2, 2), np.uint8), np.full((1, 3, 2, 2), 255, np.uint8)
    assert fidelity.difference([(black, white)]) == fidelity.Difference(1.0, 255.0, 255, 255, 1.0)


@pytest.mark.parametrize(("mean", "p999", "within"), [(0.6, 8, True), (0.61, 8, False), (0.6, 9, False)])
def test_both_limits_count(mean, p999, within):
    assert fidelity.within_limits({"mean": mean, "p999": p999}) is within


def test_both_fidelities_get_the_same_crops_and_fast_ones_differ_a_little(shards, photos):
    exact, fast, later = (
        fidelity_loss.crops(shards, name, side=32, epochs=epochs)
        for name, epochs in (("exact", range(2)), ("fast", range(2)), ("exact", range(2, 4)))
    )
    assert exact.pixels.shape == (2 * len(photos), 3, 32, 32) and exact.pixels.dtype == torch.uint8
    assert exact.photographs.tolist() == fast.photographs.tolist() == 2 * list(range(len(photos)))
    assert 0 < (exact.pixels.int() - fast.pixels.int()).abs().float().mean() < 0.6
    assert (exact.pixels.int() - later.pixels.int()).abs().float().mean() > 3


def test_a_seed_trains_the_same_network_again_and_another_seed_another():
    draw = torch.Generator().manual_seed(1)
    seen = Crops(torch.randint(0, 256, (24, 3, 32, 32), generator=draw, dtype=torch.uint8), torch.arange(24) % 3)
    first, again, other = (fidelity_loss.judge(fidelity_loss.train(seen, QUICK, seed), seen) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_a_network_learns_to_tell_what_differs():
    pixels = torch.zeros((60, 3, SIDE, SIDE), dtype=torch.uint8)
    photographs = torch.arange(60) % 3
    pixels[torch.arange(60), photographs] = 200
    task = fidelity_loss.Task(side=SIDE, epochs=10, batch_size=12)
    seen = Crops(pixels, photographs)
    assert fidelity_loss.judge(fidelity_loss.train(seen, task, 0), seen).accuracy == 1


def test_the_difference_is_taken_seed_by_seed():
    judged = {
        ("exact", "exact"): [Judged(1.0, 0.5), Judged(3.0, 0.7)],
        ("fast", "fast"): [Judged(1.5, 0.4), Judged(3.5, 0.8)],
    }
    exact, fast, apart = (found for found, _ in Losses(judged, 0.9).lines())
    assert (exact["case"], exact["loss"], exact["seeds"]) == ("loss-exact-exact", 2.0, 2)
    assert fast["loss_spread"] == pytest.approx(2**0.5)
    assert (apart["case"], apart["loss"], apart["loss_spread"]) == ("loss-difference", 0.5, 0.0)
    assert apart["accuracy"] == pytest.approx(0.0) and apart["differing_crops"] == 0.9


def test_the_picture_shows_exact_fast_and_what_differs(photos):
    sheet = np.asarray(fidelity.picture(Image.open(photos[0]).resize((448, 300))).convert("RGB")).astype(int)
    wide = fidelity.PICTURE_SIZE * fidelity.PICTURE_ENLARGED
    exact, fast, apart = (sheet[:, place : place + wide] for place in range(0, sheet.shape[1], wide + 8))
    assert (exact != fast).any()
    assert np.array_equal(apart, np.minimum(255, 16 * np.abs(exact - fast)))


def test_the_command_prints_and_writes_every_line(photos, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    assert fidelity.main([str(photos[0].parent), "--quick", "--rounds", "1", "--json", str(out)]) == 0
    lines = [json.loads(written) for written in out.read_text().splitlines()]
    pixels, losses = lines[:3], lines[3:]
    assert [found["case"] for found in pixels] == ["photos-32-bicubic", "mosaics-224-bilinear", "mosaics-224-bicubic"]
    assert 0.5 < pixels[0]["crops"] <= 1 and 0 < pixels[0]["mean"] <= pixels[0]["limit_mean"] == 0.6
    assert all(found["ratio"] > 0 and found["ratio_no_index"] > 0 for found in pixels)
    ways = [f"loss-{trained}-{on}" for trained in ("exact", "fast") for on in ("exact", "fast")]
    assert [found["case"] for found in losses] == [*ways, "loss-difference"]
    assert all(found["machine"]["cpu"] and found["versions"]["numba"] for found in lines)
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(lines)


def test_without_photographs_it_says_what_to_give(tmp_path, capsys):
    assert fidelity.main([str(tmp_path)]) == 2
    assert "GPULOAD_DATA" in capsys.readouterr().err
