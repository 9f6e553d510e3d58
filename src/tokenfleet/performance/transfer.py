"""KV on its way from the replica that computed it to the one that goes on with it."""

import numpy as np

from tokenfleet.domain.gpu import Link
from tokenfleet.domain.replica import MemoryBudget, ReplicaPhysics, StepTimeModel
from tokenfleet.domain.trace import Floats, Ints
from tokenfleet.performance.attention import chunk_attention_ps

_PS_PER_S = 1e12


def kv_bytes(memory: MemoryBudget, prompt_tokens: Ints) -> Floats:
    """KV of prompts on one gpu of a replica: growth, windows as far as they are filled, recurrent state.

    Args:
        memory: Of the replica.
        prompt_tokens: Tokens whose KV there is, one entry per request.

    Returns:
        Bytes on the fullest gpu.
    """
    tokens = np.asarray(prompt_tokens, dtype=np.float64)
    held: Floats = memory.kv_bytes_per_token * tokens + memory.kv_state_bytes_per_sequence
    for window in memory.kv_windows:
        held += window.bytes_per_token * np.minimum(tokens, window.window_tokens)
    return held


def kv_transfer_s(
    prompt_tokens: Ints,
    sender: ReplicaPhysics,
    receiver: ReplicaPhysics,
    link: Link,
    *,
    overlapped_layer_count: int | None = None,
) -> Floats:
    """Time for which the KV of a prompt keeps a replica's links busy once its prefill is done.

    Every gpu has a link of its own and moves its part beside the others, so the side whose gpus hold more of a
    sequence decides. Moved layer by layer while prefill computes (``overlapped_layer_count``), what is left to send at
    the end is the last layer, or whatever the link could not keep up with::

        left = max(whole / layers, whole - prefill * (1 - 1 / layers))

    with ``prefill`` the time that the prompt takes alone, no cache helping.

    Args:
        prompt_tokens: Tokens of each prompt.
        sender: Replica that prefills.
        receiver: Replica that decodes.
        link: What one gpu gets through.
        overlapped_layer_count: Layers of the model; ``None``: nothing is sent before the whole prompt is computed.

    Returns:
        Seconds per request, without the link's latency.
    """
    on_gpu = np.maximum(kv_bytes(sender.memory, prompt_tokens), kv_bytes(receiver.memory, prompt_tokens))
    whole_s: Floats = on_gpu / link.bytes_per_s
    if overlapped_layer_count is None:
        return whole_s
    last = 1.0 / overlapped_layer_count
    alone_s = prefill_alone_s(sender.step_time, prompt_tokens, sender.deployment.engine.max_batched_tokens)
    return np.maximum(whole_s * last, whole_s - alone_s * (1.0 - last))


def prefill_alone_s(step_time: StepTimeModel, prompt_tokens: Ints, budget_tokens: int) -> Floats:
    """Time that each prompt takes to compute with the replica to itself: full chunks and the rest.

    Launches (``eager_ps``) are left out, so short prompts come out at the lower end.
    """
    tokens = np.asarray(prompt_tokens, dtype=np.int64)
    chunks, rest = np.divmod(tokens, budget_tokens)
    total_ps = chunks * step_time.token_ps[budget_tokens] + np.where(rest > 0, step_time.token_ps[rest], 0)
    total_ps = total_ps + chunk_attention_ps(step_time, 0, tokens)
    seconds: Floats = total_ps / _PS_PER_S
    return seconds
