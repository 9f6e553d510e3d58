"""Warming on the real replay: a launch whose prompts all begin with the same long system prompt."""

from dataclasses import replace

import numpy as np

from tokenfleet import catalog, performance
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.warming import warmed
from unit.planner import toy

MODEL = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
GPU = catalog.gpu("l40s")
SHARED = 6000


def replica():
    deployment = Deployment(
        model=MODEL.name,
        gpu=GPU.name,
        layout=Layout(),
        precision="fp8",
        kv_precision="bf16",
        engine=catalog.engine("vllm", gpu=GPU),
    )
    return performance.replica_physics(MODEL, GPU, deployment)


def launch(count=400):
    return Trace(
        arrival_s=np.linspace(10.0, 14.0, count),
        input_tokens=np.full(count, SHARED + 40, dtype=np.int32),
        output_tokens=np.full(count, 20, dtype=np.int32),
        prefix_node=np.zeros(count, dtype=np.int32),
        prefixes=PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([SHARED], dtype=np.int32)),
    )


def test_a_prefix_that_is_there_already_shortens_the_first_minute():
    replays = Replays(toy.slo(), "round_robin")
    found = warmed(replays, Traffic(launch(), (10.0, 14.0)), replica(), 4)
    (hot,) = found.prefixes
    assert (hot.token_count, hot.request_count, found.request_count) == (SHARED, 400, 4)
    assert found.lead_s == 1.25
    assert found.warm.cached_fraction > found.cold.cached_fraction
    assert found.warm.ttft_p50_s < found.cold.ttft_p50_s
    assert found.warm.ttft_p99_s < found.cold.ttft_p99_s


def test_where_nothing_is_shared_or_kept_there_is_nothing_to_warm():
    replays = Replays(toy.slo(), "round_robin")
    alone = replace(launch(), prefix_node=np.full(400, -1, dtype=np.int32))
    assert warmed(replays, Traffic(alone, (10.0, 14.0)), replica(), 2) is None
    bare = replace(launch(), prefix_node=None, prefixes=None)
    assert warmed(replays, Traffic(bare, (10.0, 14.0)), replica(), 2) is None
    engine = replace(replica().deployment.engine, prefix_caching=False)
    without = replace(replica(), deployment=replace(replica().deployment, engine=engine))
    assert warmed(replays, Traffic(launch(), (10.0, 14.0)), without, 2) is None
