"""Room for preempted sequences in host memory, and the way there."""

from dataclasses import replace

import pytest

from tokenfleet import catalog, performance
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout

MODEL = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
GPU = catalog.gpu("h100_sxm")


def replica(gpu=GPU, **settings):
    engine = replace(catalog.engine("vllm", gpu=GPU), **settings)
    deployment = Deployment(
        model=MODEL.name, gpu=gpu.name, layout=Layout(), precision="bf16", kv_precision="bf16", engine=engine
    )
    return performance.replica_physics(MODEL, gpu, deployment)


def test_blocks_and_the_time_to_move_one():
    """32 layers, 8 heads of 128, keys and values of two bytes: 128 KiB a token, 2 MiB a block of 16."""
    found = replica(preemption="swap", swap_bytes=4 << 30)
    assert found.kv_block_tokens == 16
    assert found.swap_block_count == 2048
    assert found.swap_block_ps == round((2 << 20) / GPU.pcie_bytes_per_s * 1e12)


def test_who_computes_again_needs_none():
    found = replica(swap_bytes=4 << 30)
    assert (found.swap_block_count, found.swap_block_ps) == (0, 0)


def test_a_gpu_whose_way_to_the_host_nobody_knows():
    with pytest.raises(BadInput, match="preemption"):
        replica(gpu=replace(GPU, pcie_bytes_per_s=None), preemption="swap", swap_bytes=4 << 30)
