"""Cold starts by stage, against starts that people measured."""

import pytest

from tokenfleet import catalog
from tokenfleet.catalog import cold_start_facts
from tokenfleet.performance import ColdStart, StageTime, cold_start_s, startup_budget_s

A100 = catalog.gpu("a100_pcie_80gb")


def test_a_whole_start_that_somebody_timed_is_inside_the_range():
    # 284 + 126 node, 7 + 101 + 3 image, 74 + 21 framework, 62 weights, 195 engine: Qwen3.8-27B on one A100.
    predicted = cold_start_s(55.57e9, A100, storage="object_store", image_bytes=5.6e9)
    assert predicted.low_s < 873.0 < predicted.high_s
    assert predicted.typical_s == pytest.approx(873.0, rel=0.15)
    assert [stage.stage for stage in predicted.stages] == ["node", "image", "start", "weights", "compile", "warm_up"]


def test_what_is_there_already_is_not_waited_for():
    cold = cold_start_s(140e9, A100, gpu_count=4)
    warm = cold_start_s(140e9, A100, gpu_count=4, node_is_warm=True)
    cached = cold_start_s(140e9, A100, gpu_count=4, node_is_warm=True, image_is_cached=True, compiled_is_cached=True)
    near = cold_start_s(
        140e9, A100, gpu_count=4, node_is_warm=True, image_is_cached=True, compiled_is_cached=True, storage="local_nvme"
    )
    assert cold.typical_s > warm.typical_s > cached.typical_s > near.typical_s
    assert all(stage.low_s <= stage.typical_s <= stage.high_s for stage in cold.stages)


def test_weights_never_come_faster_than_the_link_of_the_gpu():
    small_link = catalog.gpu("rtx5090")
    weights = next(
        stage for stage in cold_start_s(500e9, small_link, storage="local_nvme").stages if stage.stage == "weights"
    )
    assert weights.low_s >= 500e9 / small_link.pcie_bytes_per_s


def phases(**seconds):
    return ColdStart(
        stages=tuple(
            StageTime(stage=stage, low_s=each, typical_s=each, high_s=each, evidence="")
            for stage, each in seconds.items()
        )
    )


def test_where_a_start_of_five_minutes_goes():
    # A 21.8 GiB checkpoint; the report says 277 s in all, its parts come to 287.
    first = phases(start=16.0, weights=18.0, compile=43.0, warm_up=210.0)
    later = phases(start=16.0, weights=18.0, compile=5.0, warm_up=210.0)
    assert (first.typical_s, later.typical_s) == (287.0, 249.0)
    assert 277.0 <= first.typical_s <= 287.0
    assert 239.0 <= later.typical_s <= 249.0
    for start in (first, later):
        assert 0.06 <= start.share_fraction("weights") <= 0.08, "a faster disk saves at most that"


@pytest.mark.parametrize(("load_s", "succeeds"), [(20.0, True), (277.0, True), (900.0, False)])
def test_a_probe_must_outlast_the_start(load_s, succeeds):
    probe_s = 60 * 10.0
    assert (phases(weights=load_s).high_s < probe_s) == succeeds
    assert startup_budget_s(phases(node=300.0, weights=load_s)) == 1.5 * load_s, "a node being made is not probed"


def test_every_fact_has_its_source_and_can_be_used():
    facts = cold_start_facts()
    assert {fact.stage for fact in facts} == {"node", "image", "start", "weights", "compile", "warm_up"}
    for fact in facts:
        assert fact.source.startswith("https://")
        assert fact.as_of[:2] == "20"
        assert fact.time_s > 0
        assert fact.gpu == "" or catalog.gpu(fact.gpu).name == fact.gpu
        assert fact.size_bytes is not None or fact.stage != "weights"
