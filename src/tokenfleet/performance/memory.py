"""The memory budget of one replica: named terms that add up to what the driver reports."""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, gcd
from typing import Literal

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, KvWindow, Layout, MemoryBudget
from tokenfleet.performance.coefficients import constant, engine_family, engine_version
from tokenfleet.performance.kv import SequenceMemory, context_limit, sequence_memory
from tokenfleet.performance.precision import arithmetic_notes, number_format
from tokenfleet.performance.shard import Stage, weight_groups
from tokenfleet.performance.support import missing_facts, unsupported
from tokenfleet.performance.workspace import GIB, adapter_bytes, is_slot_engine, workspace

_GRAPHS_IN_BUDGET_SINCE = (0, 21)
"""vLLM subtracts an estimate of CUDA graphs from the budget since this version; before, they came on top."""
_MOST_PARTS = 32
_BOUNDLESS_COUNT = 2**30
"""Stands for a pool or a block that never binds; small enough for 32-bit columns."""
_OPTIONAL_TERMS = frozenset({"adapters", "draft", "expert_workspace", "neighbours", "unused"})
"""Terms that are left out where they are 0; the others always show."""

Convention = Literal["total", "before_load", "after_load", "slots"]
"""What an engine's memory fraction is a share of: the gpu's total, what is free before loading, what is free after
it, or nothing (every slot gets its whole context)."""


def memory_convention(engine_name: str) -> Convention:
    """What the memory fraction of an engine means.

    Args:
        engine_name: Engine and version.

    Returns:
        ``total`` for vLLM and engines that are not known, ``before_load`` for SGLang (weights and KV share it),
        ``after_load`` for TensorRT-LLM (KV alone), ``slots`` for llama.cpp and ollama.
    """
    if is_slot_engine(engine_name):
        return "slots"
    by_family: dict[str, Convention] = {
        "sglang": "before_load",
        "trtllm": "after_load",
        "trtllm_2024": "after_load",
    }
    return by_family.get(engine_family(engine_name), "total")


def weights_bytes(model: ModelArchitecture, gpu: Gpu, deployment: Deployment, *, stage: Stage | None = None) -> int:
    """Weights of the fullest rank, in bytes.

    Where the files of the checkpoint were measured and are served as they are, the rank's share by the formula is
    scaled to them.
    """
    groups = weight_groups(model, gpu, deployment.layout, deployment.precision, stage=stage)
    return ceil(sum(group.stored_bytes for group in groups) * measured_over_formula(model, gpu, deployment))


def measured_over_formula(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> float:
    """Bytes in the checkpoint's files over what the architecture gives; 1 where nobody measured, or requantised."""
    measured = deployment.memory.checkpoint_bytes
    if measured is None or number_format(model, deployment.precision) != number_format(model, "checkpoint"):
        return 1.0
    whole = weight_groups(model, gpu, Layout(), deployment.precision)
    return measured / sum(group.stored_bytes for group in whole)


def memory_budget(
    model: ModelArchitecture, gpu: Gpu, deployment: Deployment, *, stage: Stage | None = None
) -> MemoryBudget:
    """Where the memory of the fullest gpu of a replica goes.

    Which terms an engine pays from its fraction depends on its convention (:func:`memory_convention`): vLLM from a
    share of the *total as the driver reports it*, CUDA graphs included from 0.21; SGLang weights, runtime and KV from
    a share of what is free before loading; TensorRT-LLM KV from a share of what is left after everything else;
    llama.cpp and ollama give every slot its whole context. ``reserve`` is what the engine leaves alone,
    ``fragmentation`` what is left of the pool after whole blocks. The smallest rank sets the pool.

    Args:
        model: A complete architecture.
        gpu: Memory as the driver reports it, in bytes.
        deployment: Layout, precisions, engine settings, and what else lies in memory.
        stage: One pipeline stage; ``None`` for the fullest of an even split.

    Returns:
        The budget; ``fits`` is false when weights and runtime leave no KV block, or less than one sequence at a
        stated context limit.

    Raises:
        BadInput: The architecture is partial, so that weights are unknown; or an engine of slots has no context.
    """
    missing = missing_facts(model, deployment.precision)
    if missing:
        raise BadInput(Problem("model", f"{model.name}: {text}", "give its whole config.json") for text in missing)
    sequence = sequence_memory(
        model,
        deployment.layout,
        deployment.kv_precision,
        deployment.engine,
        stage_layer_count=stage.layer_count if stage else None,
    )
    growth = sequence.growth_bytes_per_token + deployment.memory.draft_kv_bytes_per_token
    sequence = replace(sequence, growth_bytes_per_token=growth)
    terms = _terms(model, gpu, deployment, sequence, stage)
    pool = 0 if model.encoder_only else max(terms["kv_cache"], 0)
    verdict = _verdict(model, gpu, deployment, sequence, terms)
    return MemoryBudget(
        fits=verdict.fits,
        terms_bytes={name: max(size, 0) for name, size in terms.items() if size or name not in _OPTIONAL_TERMS},
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


def _terms(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    sequence: SequenceMemory,
    stage: Stage | None,
) -> dict[str, int]:
    """Signed terms of one gpu in reading order; they add up to the total whatever their sign."""
    facts, total = deployment.memory, gpu.memory_bytes
    work = workspace(model, gpu, deployment, samples=stage is None or stage.last)
    fixed = {
        "weights": weights_bytes(model, gpu, deployment, stage=stage),
        "adapters": adapter_bytes(model, deployment),
        "draft": facts.draft_weights_bytes,
        "runtime": work.runtime,
        "cuda_workspace": work.cuda_workspace,
        "cuda_graphs": work.cuda_graphs,
        "activation_peak": work.activation_peak,
        "expert_workspace": work.expert_workspace,
        "encoder_reserve": work.encoder_reserve,
        "safety": facts.safety_bytes,
        "neighbours": facts.neighbour_bytes,
    }
    free = total - sum(fixed.values())
    pool = _pool_bytes(model, deployment, sequence, fixed, total)
    if model.encoder_only:
        return {**fixed, "kv_cache": 0, "fragmentation": 0, "unused": pool, "reserve": free - pool}
    block = sequence.growth_bytes_per_token * sequence.block_tokens
    left = pool % block if block and pool > 0 else 0
    return {**fixed, "kv_cache": pool - left, "fragmentation": left, "reserve": free - pool}


def _pool_bytes(
    model: ModelArchitecture,
    deployment: Deployment,
    sequence: SequenceMemory,
    fixed: dict[str, int],
    total: int,
) -> int:
    """What the engine gives to KV, in bytes; negative when it has less than nothing."""
    engine = deployment.engine
    share = engine.memory_utilization_fraction
    convention = memory_convention(engine.name)
    free = total - sum(fixed.values())
    if convention == "slots":
        return engine.max_sequence_count * _sequence_bytes(sequence, context_limit(model, engine))
    if convention == "after_load":
        return int(share * free) if free > 0 else free
    base = total - fixed["neighbours"] if convention == "before_load" else total
    return int(share * base) - sum(fixed[name] for name in _inside(engine.name))


def _inside(engine_name: str) -> tuple[str, ...]:
    """Terms that an engine pays from its utilisation fraction."""
    always = ("weights", "adapters", "draft", "runtime", "safety")
    if engine_family(engine_name) == "sglang":
        return always
    inside = (*always, "cuda_workspace", "activation_peak", "expert_workspace", "encoder_reserve")
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
    pool = terms.get("unused", terms["kv_cache"] + terms["fragmentation"])
    limit = deployment.engine.context_limit_tokens
    slots = memory_convention(deployment.engine.name) == "slots"
    need = 0 if model.encoder_only or slots else _sequence_bytes(sequence, limit or sequence.block_tokens)
    margin = pool - need
    if _pays_from_reserve(deployment):
        margin = terms["reserve"] if slots else min(margin, terms["reserve"])
    unsure = constant("verdict_margin_gib") * GIB + terms["expert_workspace"] + terms["encoder_reserve"]
    if any(entry.kind == "compressed" for entry in model.attention):
        unsure += constant("unchecked_cache_fraction") * gpu.memory_bytes
    too_close = abs(margin) < max(unsure, constant("verdict_margin_fraction") * pool)
    reasons = _shortfalls(gpu, terms, pool, need, limit) + _reserve_shortfall(deployment, terms)
    fits = not reasons
    if fits and limit is None and not model.encoder_only:
        reasons += _context_watch(model, sequence, pool)
    if fits:
        reasons += arithmetic_notes(model, gpu, deployment.precision)
    if too_close:
        reasons += (
            f"Too close to call: the verdict hangs on {abs(margin) / GIB:.1f} GiB, runtime terms are that unsure",
        )
    return _Verdict(fits, too_close, reasons + _about_weights(model, gpu, deployment))


def _pays_from_reserve(deployment: Deployment) -> bool:
    """Whether something of the engine, or a neighbour, lies in what its fraction leaves alone."""
    convention = memory_convention(deployment.engine.name)
    if convention in {"slots", "before_load"} or deployment.memory.neighbour_bytes:
        return True
    return convention == "total" and "cuda_graphs" not in _inside(deployment.engine.name)


def _about_weights(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> tuple[str, ...]:
    measured = deployment.memory.checkpoint_bytes
    if measured is None:
        return ()
    ratio = measured_over_formula(model, gpu, deployment)
    if ratio == 1.0:
        return (f"The checkpoint's {measured / GIB:.2f} GiB are not what {deployment.precision} weights take",)
    return (f"Weights as in the checkpoint's files, {measured / GIB:.2f} GiB: {ratio:.3f} times the formula",)


def _shortfalls(gpu: Gpu, terms: dict[str, int], pool: int, need: int, limit: int | None) -> tuple[str, ...]:
    total = gpu.memory_bytes
    if terms["weights"] > total:
        return (f"Weights need {terms['weights'] / GIB:.1f} GiB of {total / GIB:.1f} GiB on each GPU",)
    if pool < 0 or (pool == 0 and need > 0):
        allowed = total - terms["reserve"]
        return (
            f"Weights, runtime and activations need {(allowed - pool) / GIB:.1f} GiB of the {allowed / GIB:.1f} GiB "
            "that the engine may use on each GPU",
        )
    if pool < need:
        what = "One KV block needs" if limit is None else f"One sequence of {limit:,} tokens needs"
        return (f"{what} {need / GIB:.2f} GiB of KV on each GPU, the pool has {pool / GIB:.2f} GiB",)
    return ()


def _reserve_shortfall(deployment: Deployment, terms: dict[str, int]) -> tuple[str, ...]:
    short = -terms["reserve"] / GIB
    if short <= 0 or terms["kv_cache"] < 0:
        return ()
    if memory_convention(deployment.engine.name) == "slots":
        slots = deployment.engine.max_sequence_count
        return (f"{slots} slots of a whole context each, with all else, need {short:.1f} GiB more on each GPU",)
    who = "Neighbours, CUDA graphs" if terms["neighbours"] else "CUDA graphs"
    return (
        f"{who} and activations need {short:.1f} GiB more on each GPU than the engine's memory fraction leaves free",
    )


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
    engine's sequence slots. Decoding sequences hold their windows; the chunk that a step computes is held besides,
    by whoever computes it.

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
    pool = budget.kv_capacity_bytes
    decoding = replace(sequence, windows=tuple(_as_decoding(each, sequence.block_tokens) for each in sequence.windows))
    decoding_each = _sequence_bytes(decoding, context_tokens)
    held = max(pool // each, (pool - (each - decoding_each)) // decoding_each)
    return min(held * budget.kv_pool_count, slots)


def _as_decoding(window: KvWindow, block_tokens: int) -> KvWindow:
    """The window without the chunk before which it lies: whole blocks, and one more as it rarely starts on one."""
    held = (ceil((window.window_tokens - 1) / block_tokens) + 1) * block_tokens
    return replace(window, held_tokens=min(held, window.held_tokens))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlocks:
    """The KV pool of a replica in the blocks that a replay counts; names as in ``ReplicaPhysics``."""

    block_count: int
    block_tokens: int
    block_bytes: float
    """On one gpu."""
    fixed_block_count: int = 0
    growth_block_count: int = 1
    window_block_count: int = 0
    window_tokens: int = 0


def kv_blocks(budget: MemoryBudget) -> KvBlocks:
    """KV pool of a replica in the blocks that a replay counts.

    Layers that keep everything and layers with a window share the pool, as in vLLM, in blocks so small that
    ``block_tokens`` of context take a whole number of them in both. Where that would be more than 32 in the former
    (the ratio of a compressed cache), windows are rounded up to a 32nd. State takes a fixed number of blocks. A model
    has one window; of several the longest would count for all. Models that keep nothing but state, and encoders, get
    one block per sequence, as long as any context.

    Args:
        budget: From :func:`memory_budget`.

    Returns:
        The pool of the replica.
    """
    growth, pools = budget.kv_bytes_per_token, budget.kv_pool_count
    windowed = sum(window.bytes_per_token for window in budget.kv_windows)
    state = budget.kv_state_bytes_per_sequence
    if growth == windowed == 0:
        count = budget.kv_capacity_bytes // state if state else _BOUNDLESS_COUNT
        return KvBlocks(block_count=count * pools, block_tokens=_BOUNDLESS_COUNT, block_bytes=state)
    parts = min(growth // gcd(growth, windowed), _MOST_PARTS)
    tokens = budget.kv_block_tokens
    # Bytes of a block, times ``parts`` where layers keep everything.
    block, share = (growth * tokens, parts) if growth else (windowed * tokens, 1)
    return KvBlocks(
        block_count=budget.kv_capacity_bytes * share // block * pools,
        block_tokens=tokens,
        block_bytes=block / share,
        fixed_block_count=-(-state * share // block),
        growth_block_count=parts,
        window_block_count=-(-windowed * tokens * share // block),
        window_tokens=max((window.window_tokens for window in budget.kv_windows), default=0),
    )
