"""KV on its way: bytes by layer kind, seconds by the fuller side."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import MS, engine, physics, step_time
from tokenfleet import catalog, performance
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.replica import Deployment, KvWindow, Layout

LINK = Link(name="by hand", line_bytes_per_s=50e9, efficiency_fraction=0.8, latency_s=0.001)
H100 = catalog.gpu("h100_sxm")


def real(model: str, tensor_parallel: int):
    deployment = Deployment(
        model=model,
        gpu="h100_sxm",
        layout=Layout(tensor_parallel=tensor_parallel),
        precision="fp8",
        kv_precision="bf16",
        engine=catalog.engine("vllm", gpu=H100),
    )
    return performance.replica_physics(catalog.model(model), H100, deployment)


def test_kv_of_a_70b_at_10k_context_crosses_in_20_ms() -> None:
    """327,680 bytes a token: 3.28 GB, split over four senders and four receivers, 40 GB/s each."""
    four = real("meta-llama/Llama-3.3-70B-Instruct", 4)
    prompt = np.array([10_000], dtype=np.int32)
    assert 4 * performance.kv_bytes(four.memory, prompt)[0] == pytest.approx(3.2768e9)
    assert performance.kv_transfer_s(prompt, four, four, LINK)[0] == pytest.approx(3.2768e9 / 4 / 40e9)


def test_the_side_with_fewer_gpus_decides() -> None:
    two, eight = (real("meta-llama/Llama-3.1-8B-Instruct", size) for size in (2, 8))
    prompt = np.array([1000], dtype=np.int32)
    slow = performance.kv_transfer_s(prompt, two, eight, LINK)
    assert slow == performance.kv_transfer_s(prompt, eight, two, LINK)
    assert slow == pytest.approx(131_072 * 1000 / 2 / 40e9)


def test_windows_fill_up_and_state_is_there_from_the_start() -> None:
    memory = replace(
        physics().memory,
        kv_bytes_per_token=10,
        kv_state_bytes_per_sequence=500,
        kv_windows=(KvWindow(window_tokens=100, held_tokens=200, bytes_per_token=3),),
    )
    found = performance.kv_bytes(memory, np.array([50, 1000], dtype=np.int32))
    assert found.tolist() == [500 + 500 + 150, 10_000 + 500 + 300]


def test_prefill_alone_is_the_sum_of_its_chunks() -> None:
    table = np.arange(65) * MS
    time = step_time(token_ps=table, pair_ps=1000)
    found = performance.prefill_alone_s(time, np.array([64, 150], dtype=np.int32), 64)
    pairs = np.array([64 * 65 / 2, 150 * 151 / 2])
    assert found == pytest.approx(np.array([0.064, 0.150]) + pairs * 1e-9)


def test_overlap_never_sends_less_than_a_layer_nor_more_than_all() -> None:
    replica = physics(settings=engine(), time=step_time())
    prompts = np.arange(1, 2000, dtype=np.int32)
    slow = replace(LINK, line_bytes_per_s=1000.0)
    whole = performance.kv_transfer_s(prompts, replica, replica, slow)
    layered = performance.kv_transfer_s(prompts, replica, replica, slow, overlapped_layer_count=32)
    assert (layered <= whole).all()
    assert (layered >= whole / 32).all()
