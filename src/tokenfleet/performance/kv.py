"""What one sequence keeps in memory, layer kind by layer kind."""

from fractions import Fraction
from math import ceil

from tokenfleet.domain.model import Attention, ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import EngineSettings, KvPrecision, KvWindow, Layout
from tokenfleet.performance.coefficients import engine_version
from tokenfleet.performance.shard import stage_fraction

_ELEMENT_BYTES: dict[KvPrecision, int] = {"bf16": 2, "fp8": 1}
_INDEX_ELEMENTS_PER_SCALE = 128
_INDEX_SCALE_BYTES = 4

_UNKNOWN_CONTEXT_TOKENS = 2**20
"""Stands for the context limit of a model that does not state one: never binds a window."""

_CHUNKS_FREED_SINCE = (0, 12)
"""vLLM frees what chunked layers no longer see since this version; before, it kept them like full attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMemory:
    """What a sequence holds on one gpu of the fullest stage."""

    growth_bytes_per_token: int
    windows: tuple[KvWindow, ...]
    state_bytes: int
    block_tokens: int


def heads_per_rank(attention: Attention, layout: Layout) -> int:
    """KV heads that one rank stores: at least one, replicated where there are more ranks than heads."""
    return max(ceil(attention.kv_head_count / layout.tensor_parallel), 1)


def layer_bytes_per_token(attention: Attention, layout: Layout, kv_precision: KvPrecision) -> Fraction:
    """Bytes that one token adds in *one* layer on one gpu, window or not.

    Full, sliding and chunked layers store ``kv_heads x (key + value size)`` elements, split over tensor-parallel
    ranks down to one head. A latent layer stores one shared latent, whole on every rank; a compressed layer one
    every ``compress_ratio`` tokens. Index keys are stored in FP8 with one 4-byte scale per 128 elements whatever
    the KV precision. Recurrent layers and encoders add nothing.

    Args:
        attention: Shape of the layer.
        layout: Ranks of the replica; data-parallel attention does not split a sequence.
        kv_precision: Of the cache, apart from that of the weights.

    Returns:
        Bytes per token; a fraction where layers compress. Sources: the MLA paper, vLLM's cache specifications.
    """
    element = _ELEMENT_BYTES[kv_precision]
    if attention.kind in {"full", "sliding", "chunked"}:
        size = attention.head_size + (0 if attention.shared_key_value else attention.value_head_size)
        plain = Fraction(heads_per_rank(attention, layout) * size * element)
    elif attention.kind in {"latent", "compressed"}:
        plain = Fraction((attention.latent_size or attention.head_size) * element, attention.compress_ratio)
    else:
        return Fraction(0)
    scales = ceil(attention.index_size / _INDEX_ELEMENTS_PER_SCALE) * _INDEX_SCALE_BYTES
    return plain + Fraction(attention.index_size + scales, attention.compress_ratio)


def kv_bytes_per_token(
    model: ModelArchitecture, layout: Layout, kv_precision: KvPrecision, *, stage_layer_count: int | None = None
) -> int:
    """Growth of the cache per token of context on one gpu, in layers whose cache grows.

    Args:
        model: The architecture.
        layout: Ranks of the replica.
        kv_precision: Of the cache.
        stage_layer_count: Layers on this pipeline stage when the split is not even.

    Returns:
        Bytes per token on one gpu, rounded up.
    """
    share = stage_fraction(model, layout, stage_layer_count)
    growing = (entry for entry in model.attention if entry.kind in {"full", "latent", "compressed"})
    return ceil(
        sum(entry.layer_count * layer_bytes_per_token(entry, layout, kv_precision) for entry in growing) * share
    )


def held_tokens(attention: Attention, engine: EngineSettings, context_limit_tokens: int) -> int:
    """Largest footprint of one sequence in a windowed layer, in tokens of whole blocks.

    While a chunk of prefill runs, the window before it and the chunk itself are held: ``window - 1 + chunk``, one
    block more because a window rarely starts on a block border. Chunked attention starts on one.

    Args:
        attention: A sliding or chunked layer.
        engine: Its step budget and block size.
        context_limit_tokens: Longest sequence.

    Returns:
        Tokens, a multiple of the block size. Source: vLLM's admission rule, exact for a published log line.
    """
    window = attention.window_tokens or context_limit_tokens
    block = engine.block_tokens
    if attention.kind == "chunked":
        return ceil(min(window + engine.max_batched_tokens, context_limit_tokens) / block) * block
    held = min(window - 1 + engine.max_batched_tokens, context_limit_tokens)
    return (ceil(held / block) + 1) * block


def context_limit(model: ModelArchitecture, engine: EngineSettings) -> int:
    """Longest sequence in tokens: the engine's setting or the model's own."""
    return engine.context_limit_tokens or model.max_context_tokens or _UNKNOWN_CONTEXT_TOKENS


def sequence_memory(
    model: ModelArchitecture,
    layout: Layout,
    kv_precision: KvPrecision,
    engine: EngineSettings,
    *,
    stage_layer_count: int | None = None,
) -> SequenceMemory:
    """What a sequence holds on one gpu of the fullest stage: growth, windows and state.

    Recurrent state splits over tensor-parallel ranks. With prefix caching an engine keeps two copies, the running
    one and the last checkpoint, and takes KV blocks as large as one layer's state, so that both share a pool
    (exact for a published log line of a hybrid model).

    Args:
        model: The architecture.
        layout: Ranks of the replica.
        kv_precision: Of keys and values; state has its own precision.
        engine: Block size, step budget, context limit, prefix caching.
        stage_layer_count: Layers on this pipeline stage when the split is not even.

    Returns:
        Bytes and tokens on one gpu.
    """
    share = stage_fraction(model, layout, stage_layer_count)
    limit = context_limit(model, engine)
    windows = []
    kept_whole = Fraction(0)
    for entry in model.attention:
        per_layer = layer_bytes_per_token(entry, layout, kv_precision)
        if entry.kind == "chunked" and _keeps_chunks(engine.name):
            kept_whole += entry.layer_count * per_layer * share
            continue
        if entry.kind == "compressed" and entry.window_tokens:
            per_layer *= entry.compress_ratio
        if entry.kind in {"sliding", "chunked", "compressed"} and entry.window_tokens:
            held = held_tokens(entry, engine, limit)
            size = ceil(entry.layer_count * per_layer * share)
            windows.append(KvWindow(window_tokens=entry.window_tokens, held_tokens=held, bytes_per_token=size))
    recurrent = [entry for entry in model.attention if entry.state_bytes_per_sequence]
    copies = 2 if engine.prefix_caching else 1
    state = sum(entry.layer_count * entry.state_bytes_per_sequence for entry in recurrent)
    return SequenceMemory(
        growth_bytes_per_token=ceil(kept_whole)
        + kv_bytes_per_token(model, layout, kv_precision, stage_layer_count=stage_layer_count),
        windows=tuple(windows),
        state_bytes=ceil(state * copies * share / layout.tensor_parallel),
        block_tokens=_block_tokens(model, layout, kv_precision, engine),
    )


def _keeps_chunks(engine_name: str) -> bool:
    name, version = engine_version(engine_name)
    return name == "vllm" and version < _CHUNKS_FREED_SINCE


def _block_tokens(model: ModelArchitecture, layout: Layout, kv_precision: KvPrecision, engine: EngineSettings) -> int:
    """Engine block size; in hybrid models the smallest multiple whose page holds one layer's state."""
    growing = [layer_bytes_per_token(entry, layout, kv_precision) for entry in model.attention if entry.kind == "full"]
    states = [entry.state_bytes_per_sequence for entry in model.attention if entry.state_bytes_per_sequence]
    if not growing or not states:
        return engine.block_tokens
    tokens = Fraction(max(states), layout.tensor_parallel) / max(growing)
    return ceil(tokens / engine.block_tokens) * engine.block_tokens
