"""The memory budget of one replica: named terms that add up to what the driver reports."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, EngineSettings, KvWindow, Layout, MemoryBudget
from tokenfleet.performance.coefficients import constant, engine_family, engine_version
from tokenfleet.performance.kv import LONG_WINDOW_TOKENS, SequenceMemory, sequence_memory
from tokenfleet.performance.precision import arithmetic_notes
from tokenfleet.performance.shard import weight_groups
from tokenfleet.performance.support import missing_facts, unsupported

GIB = 2**30
_GRAPHS_IN_BUDGET_SINCE = (0, 21)
"""vLLM subtracts an estimate of CUDA graphs from the budget since this version; before, they came on top."""
_ELEMENT_BYTES = 2
_BOUNDLESS_COUNT = 2**30
"""Stands for a pool or a block that never binds; small enough for 32-bit columns."""


def weights_bytes(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> int:
    """Weights of the fullest rank, in bytes."""
    groups = weight_groups(model, gpu, deployment.layout, deployment.precision)
    return ceil(sum(group.stored_bytes for group in groups))


def activation_bytes(model: ModelArchitecture, layout: Layout, engine: EngineSettings) -> int:
    """Activation peak of the dense part on one rank while a full step of prefill runs.

    ``0.9 x T x (2 x intermediate / tp + 2 x hidden) x 2`` bytes with ``T`` tokens in the step, for the widest block
    that every token visits; 1.1 instead of 0.9 before vLLM 0.8, where ``T`` is the context limit up to 32k. Fitted
    to start-up logs, 2 to 405 billion parameters.

    Args:
        model: The architecture.
        layout: Ranks of the replica.
        engine: Its step budget and version.

    Returns:
        Bytes.
    """
    widest = max(
        (block.shared_intermediate_size if block.expert_count else block.intermediate_size)
        for block in model.feed_forward
    )
    width = 2 * widest / layout.tensor_parallel + 2 * model.hidden_size
    factor = constant("activation_factor", "v0" if engine_family(engine.name) == "vllm_v0" else "v1")
    return round(factor * engine.max_batched_tokens * width * _ELEMENT_BYTES)


def expert_workspace_bytes(model: ModelArchitecture, layout: Layout, max_batched_tokens: int) -> int:
    """Workspace of routed experts on one rank; 0 for dense models.

    ``5 x T x k x (2 x width / tp + hidden) x 2`` bytes for ``k`` experts per token, at most 6 GiB. Logs put the
    factor anywhere between 2 and 12, which is why fit verdicts of such models stay uncertain.

    Args:
        model: The architecture.
        layout: Ranks of the replica.
        max_batched_tokens: Largest step in tokens.

    Returns:
        Bytes.
    """
    largest = 0.0
    for block in model.feed_forward:
        width = 2 * block.intermediate_size / layout.tensor_parallel + model.hidden_size
        largest = max(largest, max_batched_tokens * block.experts_per_token_count * width * _ELEMENT_BYTES)
    limit = constant("expert_workspace_limit_gib") * GIB
    return round(min(constant("expert_workspace_factor") * largest, limit))


def graph_bytes(model: ModelArchitecture, layout: Layout, engine: EngineSettings) -> int:
    """CUDA graphs of one rank: a fixed amount per layer, more with experts (start-up logs, 28 to 94 layers)."""
    kind = "v0" if engine_family(engine.name) == "vllm_v0" else "dense"
    if any(block.expert_count for block in model.feed_forward):
        kind = "moe"
    layers = ceil(model.layer_count / layout.pipeline_parallel)
    return round(layers * constant("graph_gib_per_layer", kind) * GIB)


def memory_budget(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> MemoryBudget:
    """Where the memory of the fullest gpu of a replica goes.

    The engine may use a fraction of the *total as the driver reports it*. From that come weights, runtime,
    activation peak, expert workspace and (vLLM from 0.21) CUDA graphs; the rest is KV. SGLang's fraction covers
    weights, runtime and KV only, TensorRT-LLM's is of what is left after everything else. ``reserve`` is what the
    engine leaves alone. The smallest rank sets the pool.

    Args:
        model: A complete architecture.
        gpu: Memory as the driver reports it, in bytes.
        deployment: Layout, precisions, engine settings.

    Returns:
        The budget; ``fits`` is false when weights and runtime leave no KV block, or less than one sequence at a
        stated context limit.

    Raises:
        BadInput: The architecture is partial, so that weights are unknown.
    """
    missing = missing_facts(model, deployment.precision)
    if missing:
        raise BadInput(Problem("model", f"{model.name}: {text}", "give its whole config.json") for text in missing)
    terms = _terms(model, gpu, deployment)
    sequence = sequence_memory(model, deployment.layout, deployment.kv_precision, deployment.engine)
    pool = 0 if model.encoder_only else max(terms["kv_cache"], 0)
    verdict = _verdict(model, gpu, deployment, sequence, terms)
    return MemoryBudget(
        fits=verdict.fits,
        terms_bytes={name: max(size, 0) for name, size in terms.items()},
        total_bytes=gpu.memory_bytes,
        weights_bytes=terms["weights"],
        kv_bytes_per_token=sequence.growth_bytes_per_token,
        kv_fixed_bytes_per_sequence=_fixed_bytes(sequence.windows, sequence.state_bytes),
        kv_capacity_bytes=pool,
        kv_capacity_tokens=_capacity_tokens(sequence, pool) * deployment.layout.attention_data_parallel,
        too_close_to_call=verdict.too_close,
        reasons=verdict.reasons,
        kv_block_tokens=sequence.block_tokens,
        kv_state_bytes_per_sequence=sequence.state_bytes,
        kv_windows=sequence.windows,
        kv_pool_count=deployment.layout.attention_data_parallel,
    )


def _terms(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> dict[str, int]:
    """Signed terms of one gpu in reading order; they add up to the total whatever their sign."""
    engine, layout = deployment.engine, deployment.layout
    total = gpu.memory_bytes
    fixed = {
        "weights": weights_bytes(model, gpu, deployment),
        "runtime": round(constant("runtime_gib") * GIB),
        "cuda_graphs": graph_bytes(model, layout, engine),
        "activation_peak": activation_bytes(model, layout, engine),
        "expert_workspace": expert_workspace_bytes(model, layout, engine.max_batched_tokens),
    }
    free = total - sum(fixed.values())
    if _takes_share_of_free(engine.name):
        pool = int(engine.memory_utilization_fraction * free) if free > 0 else free
    else:
        pool = int(engine.memory_utilization_fraction * total) - sum(fixed[name] for name in _inside(engine.name))
    kept = {"kv_cache": 0, "unused": pool} if model.encoder_only else {"kv_cache": pool}
    return {**fixed, **kept, "reserve": free - pool}


def _takes_share_of_free(engine_name: str) -> bool:
    """TensorRT-LLM gives KV a share of what weights and workspaces leave."""
    return engine_family(engine_name) in {"trtllm", "trtllm_2024"}


def _inside(engine_name: str) -> tuple[str, ...]:
    """Terms that an engine pays from its utilisation fraction."""
    if engine_family(engine_name) == "sglang":
        return ("weights", "runtime")
    inside = ("weights", "runtime", "activation_peak", "expert_workspace")
    name, version = engine_version(engine_name)
    return inside if name == "vllm" and version < _GRAPHS_IN_BUDGET_SINCE else (*inside, "cuda_graphs")


@dataclass(frozen=True, slots=True)
class _Verdict:
    fits: bool
    too_close: bool
    reasons: tuple[str, ...]


def _verdict(
    model: ModelArchitecture, gpu: Gpu, deployment: Deployment, sequence: SequenceMemory, terms: dict[str, int]
) -> _Verdict:
    pool = terms.get("unused", terms["kv_cache"])
    limit = deployment.engine.context_limit_tokens
    need = 0 if model.encoder_only else _sequence_bytes(sequence, limit or sequence.block_tokens)
    margin = pool - need
    if "cuda_graphs" not in _inside(deployment.engine.name) and not _takes_share_of_free(deployment.engine.name):
        margin = min(margin, terms["reserve"])
    unsure = constant("verdict_margin_gib") * GIB + terms["expert_workspace"]
    band = max(unsure, constant("verdict_margin_fraction") * pool)
    too_close = abs(margin) < band
    reasons = _shortfalls(gpu, terms, need, limit)
    fits = not reasons
    if fits and limit is None and not model.encoder_only:
        reasons += _context_watch(model, sequence, pool)
    if fits:
        reasons += arithmetic_notes(model, gpu, deployment.precision)
    if too_close:
        reasons += (
            f"Too close to call: the verdict hangs on {abs(margin) / GIB:.1f} GiB, runtime terms are that unsure",
        )
    return _Verdict(fits, too_close, reasons)


def _shortfalls(gpu: Gpu, terms: dict[str, int], need: int, limit: int | None) -> tuple[str, ...]:
    total = gpu.memory_bytes
    if terms["weights"] > total:
        return (f"Weights need {terms['weights'] / GIB:.1f} GiB of {total / GIB:.1f} GiB on each GPU",)
    pool = terms.get("unused", terms["kv_cache"])
    if pool < 0 or (pool == 0 and need > 0):
        allowed = total - terms["reserve"]
        used = allowed - pool
        return (
            f"Weights, runtime and activations need {used / GIB:.1f} GiB of the {allowed / GIB:.1f} GiB "
            "that the engine may use on each GPU",
        )
    reasons = []
    if pool < need:
        what = "One KV block needs" if limit is None else f"One sequence of {limit:,} tokens needs"
        reasons.append(f"{what} {need / GIB:.2f} GiB of KV on each GPU, the pool has {pool / GIB:.2f} GiB")
    if terms["reserve"] < 0:
        reasons.append(
            f"CUDA graphs and activations need {-terms['reserve'] / GIB:.1f} GiB more on each GPU than the engine's "
            "memory fraction leaves free"
        )
    return tuple(reasons)


def _context_watch(model: ModelArchitecture, sequence: SequenceMemory, pool: int) -> tuple[str, ...]:
    if model.max_context_tokens is None or _sequence_bytes(sequence, model.max_context_tokens) <= pool:
        return ()
    longest = (pool - _fixed_bytes(sequence.windows, sequence.state_bytes)) // max(sequence.growth_bytes_per_token, 1)
    return (
        f"One sequence can grow to {max(longest, 0):,} tokens, not to the model's {model.max_context_tokens:,}: "
        "the engine needs a context limit to start",
    )


def _sequence_bytes(sequence: SequenceMemory, context_tokens: int) -> int:
    """KV of one sequence on one gpu at a context, in whole blocks."""
    blocks = ceil(context_tokens / sequence.block_tokens)
    grown = blocks * sequence.block_tokens * sequence.growth_bytes_per_token
    held = sum(
        min(window.held_tokens, blocks * sequence.block_tokens) * window.bytes_per_token for window in sequence.windows
    )
    return grown + held + sequence.state_bytes


def _fixed_bytes(windows: tuple[KvWindow, ...], state_bytes: int) -> int:
    return state_bytes + sum(window.held_tokens * window.bytes_per_token for window in windows)


def _capacity_tokens(sequence: SequenceMemory, pool: int) -> int:
    """Tokens of one pool in whole blocks; models with windows only are counted by those."""
    per_token = sequence.growth_bytes_per_token or sum(window.bytes_per_token for window in sequence.windows)
    if per_token == 0:
        return 0
    return pool // (per_token * sequence.block_tokens) * sequence.block_tokens


def sequences_at(budget: MemoryBudget, deployment: Deployment, context_tokens: int) -> int:
    """How many sequences of one context length a replica holds at once.

    Whole KV blocks, windows and state included, on every data-parallel attention rank; never more than the
    engine's sequence slots.

    Args:
        budget: From :func:`memory_budget`.
        deployment: Its engine settings carry the slots.
        context_tokens: Prompt and output so far, positive.

    Returns:
        Sequences of the replica; 0 when it does not fit or not even one sequence does.
    """
    slots = deployment.engine.max_sequence_count
    if not budget.fits:
        return 0
    sequence = SequenceMemory(
        growth_bytes_per_token=budget.kv_bytes_per_token,
        windows=budget.kv_windows,
        state_bytes=budget.kv_state_bytes_per_sequence,
        block_tokens=budget.kv_block_tokens,
    )
    each = _sequence_bytes(sequence, context_tokens)
    if each == 0:
        return slots
    return min(budget.kv_capacity_bytes // each * budget.kv_pool_count, slots)


def smallest_fitting_layouts(
    model: ModelArchitecture, gpus: Iterable[Gpu], deployment: Deployment
) -> tuple[tuple[Gpu, Layout], ...]:
    """For each gpu the smallest replica that fits, as an answer to one that does not.

    Args:
        model: The architecture.
        gpus: Parts to try, in the order of the answer.
        deployment: Precisions and engine settings to keep; its gpu and layout are replaced.

    Returns:
        One gpu and tensor-parallel layout for each part on which some layout within a node fits and the physics
        supports it.
    """
    answer = []
    for gpu in gpus:
        ranks = 1
        while ranks <= gpu.gpus_per_node_count:
            layout = Layout(tensor_parallel=ranks)
            tried = replace(deployment, gpu=gpu.name, layout=layout)
            if not unsupported(model, gpu, tried) and memory_budget(model, gpu, tried).fits:
                answer.append((gpu, layout))
                break
            ranks *= 2
    return tuple(answer)


def kv_blocks(budget: MemoryBudget) -> tuple[int, int, int]:
    """KV pool of a replica in the blocks that a replay counts.

    A running sequence takes ``ceil(context / tokens)`` blocks that grow and a fixed number for small windows and
    state. Windows of 4,096 tokens and more, and those of models in which nothing else grows, are charged like full
    attention: exact for contexts inside the window, too much beyond it. Models that keep nothing but state, and
    encoders, get one block per sequence, as long as any context.

    Args:
        budget: From :func:`memory_budget`.

    Returns:
        Blocks of the replica, tokens per block, fixed blocks per sequence.
    """
    growth = budget.kv_bytes_per_token
    small = []
    for window in budget.kv_windows:
        if window.window_tokens >= LONG_WINDOW_TOKENS or budget.kv_bytes_per_token == 0:
            growth += window.bytes_per_token
        else:
            small.append(window)
    tokens = budget.kv_block_tokens
    if growth == 0:
        state = budget.kv_state_bytes_per_sequence
        count = budget.kv_capacity_bytes // state if state else _BOUNDLESS_COUNT
        return count * budget.kv_pool_count, _BOUNDLESS_COUNT, 0
    block = growth * tokens
    fixed = budget.kv_state_bytes_per_sequence
    fixed += sum((ceil((window.window_tokens - 1) / tokens) + 1) * tokens * window.bytes_per_token for window in small)
    return budget.kv_capacity_bytes // block * budget.kv_pool_count, tokens, ceil(fixed / block)
