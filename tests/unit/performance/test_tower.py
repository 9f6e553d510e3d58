"""The image tower: by hand, and the same work wherever it runs."""

import numpy as np
import pytest

from tokenfleet import catalog, performance
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.performance.coefficients import constant

MODEL = catalog.model("Qwen/Qwen3-VL-8B-Instruct")
L4 = catalog.gpu("l4")
DEPLOYMENT = Deployment(
    model=MODEL.name,
    gpu="l4",
    layout=Layout(tensor_parallel=1),
    precision="int4",
    kv_precision="bf16",
    engine=catalog.engine("vllm", gpu=L4),
)


def test_an_image_is_four_patches_a_token_through_every_weight() -> None:
    """1,024 tokens of a 1,024 x 1,024 image: 2 x parameters x 4,096 patches over what an L4 computes."""
    found = performance.tower_s(MODEL, L4, np.array([1024.0]))[0]
    flop = 2 * MODEL.vision_parameter_count * 4096
    assert found == pytest.approx(flop / (L4.bf16_flop_per_s * constant("dense_compute_fraction.bf16")))


def test_a_small_image_costs_reading_the_weights() -> None:
    found = performance.tower_s(MODEL, L4, np.array([1.0]))[0]
    read_s = 2 * MODEL.vision_parameter_count / L4.memory_bandwidth_bytes_per_s
    assert found == pytest.approx(read_s / constant("dense_bandwidth_fraction.bf16"))


def test_spread_over_prompts_it_is_the_same_work() -> None:
    """A third of the prompt tokens are images: a step of 3,000 tokens carries the tower work of 1,000."""
    h100 = catalog.gpu("h100_sxm")
    deployment = Deployment(
        model=MODEL.name,
        gpu="h100_sxm",
        layout=Layout(),
        precision="bf16",
        kv_precision="bf16",
        engine=catalog.engine("vllm", gpu=h100),
    )
    plain = performance.replica_physics(MODEL, h100, deployment)
    seeing = performance.with_tower(plain, MODEL, h100, 1 / 3)
    extra_s = (seeing.step_time.token_ps - plain.step_time.token_ps)[3000] / 1e12
    assert extra_s == pytest.approx(performance.tower_s(MODEL, h100, np.array([1000.0]))[0], rel=1e-6)


def test_a_tower_alone_keeps_no_kv_and_needs_one_to_exist() -> None:
    alone = performance.tower_physics(MODEL, L4, DEPLOYMENT)
    assert alone.kv_fixed_block_count == 0
    assert alone.step_time.pair_ps == 0
    assert (np.diff(alone.step_time.token_ps) >= 0).all()
    with pytest.raises(BadInput, match="no image tower"):
        performance.tower_s(catalog.model("Qwen/Qwen3-8B"), L4, np.array([1.0]))
