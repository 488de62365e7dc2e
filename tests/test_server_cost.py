"""What a round costs the server, as `bench/server_cost.py` counts it."""

import pytest

from server_cost import measure, texts


def test_merging_adapters_costs_the_server_next_to_nothing() -> None:
    cost = measure("fedavg")
    size = 4 * (12 * 49_152 + 768 * 10 + 10)  # bytes of the adapters of twelve layers and of the head
    assert cost["gflops"] == pytest.approx(2 * 50 * size / 4e9, rel=0.01)  # a product and a sum for each number
    assert cost["cache_mb"] == pytest.approx(343.2 + size / 1e6, rel=0.01)
    assert texts(cost) == ("fedavg", "0.06", "18", "346", "340")  # the row in docs/benchmarks.md


@pytest.mark.slow
def test_the_cost_of_fine_tuning_is_the_papers() -> None:
    cost = measure("fed+ft")
    assert cost["gflops"] == pytest.approx(cost["paper_gflops"], rel=0.1)
    assert cost["cache_mb"] == pytest.approx(cost["paper_cache_mb"], rel=0.05)


@pytest.mark.slow
def test_every_step_of_a_distillation_is_counted() -> None:
    assert texts(measure("feddf")) == ("feddf", "2,370,509", "18,000,000", "346", "340")
