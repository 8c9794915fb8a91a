"""CPU against GPU: rates, costs and crossings, against a count of every batch and against the page with the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuload.cli.bench import gpu_prediction
from gpuload.cli.bench.preprocessing import Crossings, Prices, Side, crossings, duel
from tests.cli.outcomes import everything, faster, outcome, row, training

ROOT = Path(__file__).resolve().parents[2]
CPU = Side("CPU", 1e-3)
GPU = Side("GPU", 1e-4, 1e-5, 1e-3)


def simulated(side: Side, *, cores: int, batch_size: int, batches: int = 2000) -> float:
    """Images/s of batches that pass the host (all cores on one) and then the GPU, one after the other in each."""
    host_free_s = gpu_free_s = first_s = 0.0
    for number in range(batches):
        host_free_s += batch_size * side.host_s / cores
        gpu_free_s = max(gpu_free_s, host_free_s) + side.gpu_batch_s + batch_size * side.gpu_s
        if number == 0:
            first_s = gpu_free_s
    return (batches - 1) * batch_size / (gpu_free_s - first_s)


@pytest.mark.parametrize("side", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("cores", "batch_size"), [(1, 1), (3, 7), (16, 64), (200, 256)])
def test_a_rate_is_that_of_batches_passing_one_by_one(side, cores, batch_size):
    rate = side.images_per_s(cores=cores, batch_size=batch_size)
    assert rate == pytest.approx(simulated(side, cores=cores, batch_size=batch_size), rel=1e-6)


def test_where_they_cross_is_where_a_search_over_simulations_finds_it():
    found = crossings(CPU, GPU, cores=4, batch_size=16)

    def ahead(cores: int, batch_size: int, ratio: float = 1.0) -> bool:
        gpu = Side("", GPU.host_s * ratio, GPU.gpu_s * ratio, GPU.gpu_batch_s)
        return simulated(gpu, cores=cores, batch_size=batch_size) > simulated(
            Side("", CPU.host_s * ratio), cores=cores, batch_size=batch_size
        )

    assert found.cores == next(n for n in range(1, 100) if not ahead(n, 16))
    assert found.batch_size == next(n for n in range(1, 100) if ahead(4, n))
    assert found.pixels_ratio is not None
    assert ahead(4, 16, 1.02 * found.pixels_ratio) and not ahead(4, 16, 0.97 * found.pixels_ratio)


def test_a_gpu_that_never_wins_crosses_nowhere_and_one_that_always_does_at_once():
    slow = Side("GPU", 1e-4, 1.0)
    assert crossings(CPU, slow, cores=4, batch_size=64) == Crossings(1, None, None)
    fast = crossings(CPU, Side("GPU", 1e-5, 1e-9), cores=4, batch_size=64)
    assert fast == Crossings(None, 1, 0.01)


def test_costs_are_hours_of_cores_and_of_the_gpu():
    # 1000 s of one core; 100 s of one core and 1e6 * (1e-5 + 1e-3 / 100) = 20 s of the GPU.
    assert CPU.cost_per_million(Prices(3.6, None), batch_size=100) == pytest.approx(1.0)
    assert GPU.cost_per_million(Prices(3.6, 36.0), batch_size=100) == pytest.approx(0.1 + 0.2)
    assert GPU.cost_per_million(Prices(3.6, None), batch_size=100) is None
    assert CPU.cost_per_million(Prices(), batch_size=100) is None


def test_the_prediction_holds_the_numbers_of_the_page_that_explains_them():
    page = (ROOT / "docs/kernels.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+\|[^|]+\|[^|]+\| (\d+) us \|", page, re.MULTILINE)
    assert {name: int(us) for name, us in rows} == {**gpu_prediction.FIXED_US, **gpu_prediction.GROWING_US}
    assert f"{gpu_prediction.STAGING_US} us an image in tasks of 64" in page
    assert f"joining and writing the upload {gpu_prediction.JOINING_US} us" in page
    take = gpu_prediction.predicted()
    assert 1000 * (take.batch_s + 256 * take.image_s) == pytest.approx(0.635)


def test_without_a_gpu_the_duel_is_against_the_prediction():
    found = duel(everything(), None)
    assert found is not None
    assert found.cpu.host_s == pytest.approx(0.6e-3)  # gpuload-native's 3 s per 1000 images, divided by 5
    assert found.gpu.measured is None and found.gpu.source == gpu_prediction.SOURCE
    assert duel(outcome([row("torch")]), None) is None


def test_a_measured_gpu_takes_what_it_adds_to_a_step_and_without_a_model_what_is_predicted():
    figures = faster(20.0, cpu_s_per_1000=0.06)
    trained = outcome([row("torch"), row("gpuload-native", figures, training=training(0.0, 0.012, 0.010))], "cuda")
    found = duel(everything(), trained)
    assert found is not None
    assert found.gpu.gpu_image_s(64) == pytest.approx(0.002 / 64)
    assert found.gpu.measured == 10000 and found.gpu.host_s == pytest.approx(6e-5)
    untrained = duel(everything(), outcome([row("torch"), row("gpuload-native", figures)], "cuda"))
    assert untrained is not None
    assert "predicted" in untrained.gpu.source and untrained.gpu.host_s == pytest.approx(6e-5)
