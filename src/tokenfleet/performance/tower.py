"""The image tower of a model on a replica of its own: what images cost before the language model sees them."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, MemoryBudget, ReplicaPhysics, StepTimeModel
from tokenfleet.domain.trace import Floats
from tokenfleet.performance.coefficients import constant, engine_family
from tokenfleet.performance.replica import replica_physics
from tokenfleet.performance.workspace import GIB, workspace

PATCHES_PER_TOKEN = 4
"""Towers merge two by two patches into one token of the prompt (Qwen-VL and most others)."""
_BYTES_PER_WEIGHT = 2
_LONGEST_TOKENS = 2**17
"""A block as long as any image, of which there is no end: the tower keeps no KV."""
_PS_PER_S = 1e12


def tower_s(model: ModelArchitecture, gpu: Gpu, image_tokens: Floats) -> Floats:
    """Time of the image tower on one gpu: the larger of computing every patch and reading the weights once.

    ``max(2 x parameters x 4 x tokens / (peak x share), 2 x parameters / (bandwidth x share))``, in 16 bits, as towers
    are served; attention between patches is left out. Shares are those of the dense matrices of language models.

    Args:
        model: A model that reads images.
        gpu: The part.
        image_tokens: Tokens that the images of one step become.

    Returns:
        Seconds.

    Raises:
        BadInput: The model has no tower that can be read, or the gpu's rates are not known.
    """
    parameters = model.vision_parameter_count
    if not parameters:
        raise BadInput.at("model", f"{model.name} has no image tower that can be read", "take a model that has one")
    if gpu.bf16_flop_per_s is None or gpu.memory_bandwidth_bytes_per_s is None:
        raise BadInput.at("gpu", f"rates of {gpu.name} are not known", "take another gpu")
    compute_s = (
        2.0
        * parameters
        * PATCHES_PER_TOKEN
        * np.asarray(image_tokens, dtype=np.float64)
        / (gpu.bf16_flop_per_s * constant("dense_compute_fraction.bf16"))
    )
    read_s = _BYTES_PER_WEIGHT * parameters / gpu.memory_bandwidth_bytes_per_s
    slowest: Floats = np.maximum(compute_s, read_s / constant("dense_bandwidth_fraction.bf16"))
    return slowest


def tower_budget(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> MemoryBudget:
    """Where the memory of a gpu goes that runs the image tower alone: its weights in 16 bits, and the runtime.

    Args:
        model: A model that reads images.
        gpu: Memory as the driver reports it, in bytes.
        deployment: One gpu of it, and the share that the engine may take.

    Returns:
        The budget, without KV; what images need while they are computed is not known, and left out.
    """
    weights = _BYTES_PER_WEIGHT * (model.vision_parameter_count or 0)
    runtime = workspace(model, gpu, deployment).runtime
    allowed = int(deployment.engine.memory_utilization_fraction * gpu.memory_bytes)
    unused = allowed - weights - runtime
    short = (
        f"The image tower and the runtime need {(weights + runtime) / GIB:.1f} GiB of the {allowed / GIB:.1f} GiB "
        "that the engine may use"
    )
    return MemoryBudget(
        fits=unused >= 0,
        terms_bytes={
            "weights": weights,
            "runtime": runtime,
            "unused": max(unused, 0),
            "reserve": gpu.memory_bytes - allowed,
        },
        total_bytes=gpu.memory_bytes,
        weights_bytes=weights,
        kv_bytes_per_token=0,
        kv_fixed_bytes_per_sequence=0,
        kv_capacity_bytes=0,
        kv_capacity_tokens=0,
        too_close_to_call=False,
        reasons=() if unused >= 0 else (short,),
    )


def tower_physics(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> ReplicaPhysics:
    """A replica that runs the image tower alone: no KV, a step for the images that fit into its budget.

    Args:
        model: A model that reads images.
        gpu: The part.
        deployment: One gpu of it; the step budget counts image tokens.

    Returns:
        Physics for prefill-only requests of image tokens; the error band is that of the whole model.

    Raises:
        BadInput: As for :func:`tower_s`.
    """
    whole = replica_physics(model, gpu, deployment)
    engine = deployment.engine
    tokens = np.arange(max(engine.max_batched_tokens, engine.max_sequence_count) + 1, dtype=np.float64)
    step_s = tower_s(model, gpu, tokens) + constant("step_s", engine_family(engine.name))
    return replace(
        whole,
        deployment=replace(deployment, engine=replace(engine, prefix_caching=False)),
        memory=tower_budget(model, gpu, deployment),
        model_context_tokens=None,
        kv_block_count=2**30,
        kv_block_tokens=_LONGEST_TOKENS,
        kv_fixed_block_count=0,
        step_time=StepTimeModel(
            token_ps=np.rint(step_s * _PS_PER_S).astype(np.int64),
            sequence_ps=0,
            context_ps=0,
            window_ps=0,
            window_tokens=0,
            pair_ps=0,
            eager_ps=0,
            request_ps=0,
        ),
    )


def with_tower(replica: ReplicaPhysics, model: ModelArchitecture, gpu: Gpu, image_fraction: float) -> ReplicaPhysics:
    """A replica that runs the tower beside the language model: its work spread evenly over all tokens of prompts.

    Args:
        replica: The language model's.
        model: A model that reads images.
        gpu: The part.
        image_fraction: Share of the prompt tokens that come from images.

    Returns:
        The replica whose step takes longer by the mean tower work of its tokens. Decodes are charged like prompt
        tokens, of which they are few; tensor parallelism does not split the tower.
    """
    per_token_s = float(tower_s(model, gpu, np.array([1e6]))[0]) / 1e6
    extra_ps = np.rint(np.arange(len(replica.step_time.token_ps)) * (per_token_s * image_fraction * _PS_PER_S))
    token_ps = replica.step_time.token_ps + extra_ps.astype(np.int64)
    return replace(replica, step_time=replace(replica.step_time, token_ps=token_ps))
