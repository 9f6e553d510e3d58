"""Attention blocks of a config: what they keep per sequence and how many weights they hold."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.catalog.families import ENCODERS
from tokenfleet.catalog.layer_pattern import Kind, layer_pattern
from tokenfleet.domain.model import Attention, AttentionKind

_STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "": 4, "auto": 4}
"""Recurrent states are kept in 32 bit unless the config says otherwise; the convolution tail in 16 bit."""
_CONV_BYTES = 2
_KEPT: dict[Kind, AttentionKind] = {"full": "full", "sliding": "sliding", "chunked": "chunked", "none": "none"}


def attention_layers(fields: Fields, layers: int) -> tuple[Attention, ...]:
    """One entry per attention shape, in the order of first appearance; weights leave out biases and norms.

    Raises:
        BadInput: a shape that no rule can read.
    """
    if fields.model_type in ENCODERS:
        return (replace(_heads(fields, "none"), layer_count=layers),)
    blocks = fields.items("block_configs") or fields.items("nas_blocks")
    if blocks is not None:
        fields.expect_entries("block_configs", len(blocks), layers)
        return _grouped(_nas_block(fields, block) for block in blocks[:layers])
    ratios = fields.items("compress_ratios")
    if ratios is not None:
        fields.expect_entries("compress_ratios", len(ratios), layers)
        return _grouped(_compressed(fields, ratio) for ratio in ratios[:layers])
    pattern = layer_pattern(fields, layers)
    per_layer = [fields.items(key) for key in _HEADS_PER_LAYER]
    if any(per_layer):
        return _grouped(_heads_of_layer(fields, kind, layer, per_layer) for layer, kind in enumerate(pattern))
    kinds = {kind: _block(fields, kind) for kind in dict.fromkeys(pattern)}
    return _indexed(fields, _grouped(kinds[kind] for kind in pattern))


def _grouped(blocks: Iterable[Attention]) -> tuple[Attention, ...]:
    """Equal blocks of one layer each, as one block of many layers."""
    counts: dict[Attention, int] = {}
    for block in blocks:
        counts[block] = counts.get(block, 0) + 1
    return tuple(replace(block, layer_count=count) for block, count in counts.items())


_HEADS_PER_LAYER = ("num_attention_heads_per_layer", "num_key_value_heads_per_layer")


def _heads_of_layer(fields: Fields, kind: Kind, layer: int, per_layer: list[list[object] | None]) -> Attention:
    """Plain attention whose head counts are listed layer by layer."""
    counts: list[int | None] = []
    for key, listed in zip(_HEADS_PER_LAYER, per_layer, strict=True):
        count = listed[layer] if listed and layer < len(listed) else None
        if listed and (isinstance(count, bool) or not isinstance(count, int)):
            raise fields.refuse(key, f"no whole number for layer {layer}", "give one entry for each layer")
        counts.append(count if isinstance(count, int) else None)
    if kind not in _KEPT or fields.count("kv_lora_rank"):
        raise fields.refuse("layer_types", "heads listed by layer go with plain attention alone")
    return _heads(fields, kind, heads=counts[0], kv_heads=counts[1])


def _block(fields: Fields, kind: Kind) -> Attention:
    if kind == "linear":
        return _kimi_delta(fields) if fields.part("linear_attn_config") else _gated_delta(fields)
    if kind == "mamba":
        return _mamba2(fields)
    if kind == "mamba1":
        return _mamba1(fields)
    if kind == "none":
        return _without_attention()
    if fields.count("kv_lora_rank"):
        return _latent(fields)
    return _heads(fields, kind)


def _without_attention(weight_count: int = 0) -> Attention:
    return Attention(
        kind="none",
        layer_count=1,
        query_head_count=0,
        kv_head_count=0,
        head_size=0,
        value_head_size=0,
        weight_count=weight_count,
    )


def head_size(fields: Fields) -> int:
    """Size of one head: as stated, else the hidden size shared out evenly.

    Raises:
        BadInput: not stated, and the heads do not divide the hidden size.
    """
    stated = fields.count("head_dim")
    if stated:
        return stated
    hidden, heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    if hidden % heads:
        raise fields.refuse("head_dim", f"missing, and {heads} heads do not divide {hidden}", "add head_dim")
    return hidden // heads


def _kv_heads(fields: Fields, heads: int) -> int:
    stated = fields.count("num_key_value_heads")
    if fields.model_type == "falcon" and fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1
    return stated or heads


def _heads(fields: Fields, kind: Kind, *, heads: int | None = None, kv_heads: int | None = None) -> Attention:
    """Multi-head, grouped-query and multi-query attention, over everything or a window."""
    hidden, size = fields.need("hidden_size"), head_size(fields)
    heads = heads or fields.need("num_attention_heads")
    kv_heads, value = kv_heads or _kv_heads(fields, heads), fields.count("v_head_dim") or size
    shared = False
    if kind == "full" and fields.count("global_head_dim"):
        size = value = fields.need("global_head_dim")
        kv_heads = fields.count("num_global_key_value_heads") or kv_heads
        shared = fields.flag("attention_k_eq_v") is True
    elif kind == "sliding":
        heads = _swa(fields, "swa_num_attention_heads") or heads
        kv_heads = _swa(fields, "swa_num_key_value_heads") or kv_heads
        size, value = _swa(fields, "swa_head_dim") or size, _swa(fields, "swa_v_head_dim") or value
    if shared:
        fields.notes.append("global layers use keys as values, counted once; an engine that keeps both doubles them")
    queries = heads * size * (2 if fields.flag("attn_output_gate") else 1)
    return Attention(
        kind=_KEPT[kind],
        layer_count=1,
        query_head_count=heads,
        kv_head_count=kv_heads,
        head_size=size,
        value_head_size=value,
        weight_count=hidden * (queries + kv_heads * size + (0 if shared else kv_heads * value) + heads * value),
        window_tokens=_window(fields, kind),
        shared_key_value=shared,
    )


def _swa(fields: Fields, key: str) -> int | None:
    value = fields.raw(key)
    return value if isinstance(value, int) else None


def _window(fields: Fields, kind: Kind) -> int | None:
    if kind == "sliding":
        return fields.need("sliding_window")
    return fields.need("attention_chunk_size") if kind == "chunked" else None


def _latent(fields: Fields) -> Attention:
    """Multi-head latent attention: queries and keys through low ranks, one latent and one rotary key kept."""
    hidden, heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    rank, rotary = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    plain, value = fields.need("qk_nope_head_dim"), fields.need("v_head_dim")
    query_rank = fields.count("q_lora_rank")
    query_width = heads * (plain + rotary)
    queries = query_rank * (hidden + query_width) if query_rank else hidden * query_width
    return Attention(
        kind="latent",
        layer_count=1,
        query_head_count=heads,
        kv_head_count=1,
        head_size=plain + rotary,
        value_head_size=value,
        weight_count=queries + hidden * (rank + rotary) + rank * heads * (plain + value) + heads * value * hidden,
        latent_size=rank + rotary,
    )


def _index_weights(fields: Fields) -> int:
    """Weights of a sparse-attention indexer: queries from the low rank, one key head, one weight per head."""
    hidden, heads, size = fields.need("hidden_size"), fields.need("index_n_heads"), fields.need("index_head_dim")
    return (fields.count("q_lora_rank") or hidden) * heads * size + hidden * size + hidden * heads


def _indexed(fields: Fields, blocks: tuple[Attention, ...]) -> tuple[Attention, ...]:
    """Adds sparse-attention index keys to the layers that have them."""
    if fields.part("sparse_attention_config"):
        return _block_sparse(fields, blocks)
    if not fields.count("index_topk"):
        return blocks
    block = blocks[0]
    own = _own_indexers(fields, block.layer_count)
    top = replace(block, index_top_k_tokens=fields.need("index_topk"))
    with_index = replace(
        top,
        layer_count=own,
        index_size=fields.need("index_head_dim"),
        weight_count=block.weight_count + _index_weights(fields),
    )
    without = replace(top, layer_count=block.layer_count - own)
    return tuple(one for one in (with_index, without) if one.layer_count)


def _own_indexers(fields: Fields, layers: int) -> int:
    """Layers with an indexer of their own; the others reuse the choice of one before them."""
    listed, counts = fields.items("indexer_types"), fields.part("indexer_types_counts")
    if listed is not None:
        return sum(kind == "full" for kind in listed[:layers])
    full = counts.get("full")
    return full if isinstance(full, int) else layers


def _block_sparse(fields: Fields, blocks: tuple[Attention, ...]) -> tuple[Attention, ...]:
    """MiniMax: an index key per token chooses whole blocks of keys, in all but the first layers."""
    sparse = fields.part("sparse_attention_config")
    size, heads = sparse.get("sparse_index_dim"), sparse.get("sparse_num_index_heads")
    block_tokens, top_blocks = sparse.get("sparse_block_size"), sparse.get("sparse_topk_blocks")
    count = sparse.get("num_sparse_layers")
    numbers = (size, heads, block_tokens, top_blocks)
    if not all(isinstance(number, int) for number in (*numbers, count)) or len(blocks) != 1:
        raise fields.refuse("sparse_attention_config", "index size, heads, blocks or layers missing")
    (block,) = blocks
    sizes = [int(str(number)) for number in (*numbers, count)]
    layers = min(sizes[4], block.layer_count)
    with_index = replace(
        block,
        layer_count=layers,
        index_size=sizes[0],
        index_top_k_tokens=sizes[2] * sizes[3],
        weight_count=block.weight_count + fields.need("hidden_size") * sizes[0] * (sizes[1] + 1),
    )
    return tuple(one for one in (with_index, replace(block, layer_count=block.layer_count - layers)) if one.layer_count)


def _compressed(fields: Fields, ratio: object) -> Attention:
    """DeepSeek V4: one latent of head size for each ``ratio`` tokens, beside a short window of single tokens.

    Layers with ratio 0 have the window alone. The indexer works in layers that compress little and chooses among
    compressed entries. An estimate from the config: check it against the start-up log of an engine.
    """
    if isinstance(ratio, bool) or not isinstance(ratio, int):
        raise fields.refuse("compress_ratios", f"expected whole numbers, found {ratio!r}")
    hidden, heads, size = fields.need("hidden_size"), fields.need("num_attention_heads"), fields.need("head_dim")
    rank, out_rank, groups = fields.need("q_lora_rank"), fields.need("o_lora_rank"), fields.need("o_groups")
    weights = rank * (hidden + heads * size) + hidden * size + out_rank * (heads * size + groups * hidden)
    base = Attention(
        kind="sliding",
        layer_count=1,
        query_head_count=heads,
        kv_head_count=1,
        head_size=size,
        value_head_size=size,
        weight_count=weights,
        window_tokens=fields.need("sliding_window"),
        shared_key_value=True,
    )
    if ratio == 0:
        return base
    chooses = ratio <= _INDEXED_RATIO
    index = fields.need("index_head_dim") if chooses else 0
    top = fields.need("index_topk") * ratio if chooses else None
    compressor = 2 * hidden * size * (2 if chooses else 1)
    indexer = _index_weights(fields) + 4 * hidden * index if chooses else 0
    return replace(
        base,
        kind="compressed",
        weight_count=weights + compressor + indexer,
        latent_size=size,
        compress_ratio=ratio,
        index_size=index // ratio,
        index_top_k_tokens=top,
    )


_INDEXED_RATIO = 16
"""Layers that compress less than this choose entries by index; the others read them all."""


def _gated_delta(fields: Fields) -> Attention:
    """Qwen3-Next, Qwen3.5: a matrix per value head as state, and a short convolution over queries, keys, values."""
    hidden, kernel = fields.need("hidden_size"), fields.need("linear_conv_kernel_dim")
    key_heads, value_heads = fields.need("linear_num_key_heads"), fields.need("linear_num_value_heads")
    key_size, value_size = fields.need("linear_key_head_dim"), fields.need("linear_value_head_dim")
    keys, values = key_heads * key_size, value_heads * value_size
    channels = 2 * keys + values
    state = value_heads * key_size * value_size * _state_bytes(fields) + channels * (kernel - 1) * _CONV_BYTES
    weights = hidden * (2 * keys + 2 * values + 2 * value_heads) + channels * kernel + values * hidden
    return _recurrent(value_heads, key_heads, key_size, value_size, weights, state)


def _kimi_delta(fields: Fields) -> Attention:
    """Kimi: delta attention with a gate per channel, low rank or full."""
    part, hidden = fields.part("linear_attn_config"), fields.need("hidden_size")
    heads, size, kernel = part.get("num_heads"), part.get("head_dim"), part.get("short_conv_kernel_size")
    if not (isinstance(heads, int) and isinstance(size, int) and isinstance(kernel, int)):
        raise fields.refuse("linear_attn_config", "num_heads, head_dim or short_conv_kernel_size missing")
    width = heads * size
    gate = hidden * width if part.get("use_full_rank_gate") else size * (hidden + width)
    weights = 4 * hidden * width + gate + size * (hidden + width) + hidden * heads + 3 * width * kernel
    state = heads * size * size * _state_bytes(fields) + 3 * width * (kernel - 1) * _CONV_BYTES
    return _recurrent(heads, heads, size, size, weights, state)


def _mamba2(fields: Fields) -> Attention:
    """Mamba-2: a state per channel, and the whole kernel of a short convolution."""
    hidden, heads, size = fields.need("hidden_size"), fields.need("mamba_num_heads"), fields.need("mamba_head_dim")
    state_size, groups, kernel = fields.need("ssm_state_size"), fields.need("n_groups"), fields.need("conv_kernel")
    width = heads * size
    channels = width + 2 * groups * state_size
    state = width * state_size * _state_bytes(fields) + channels * kernel * _CONV_BYTES
    weights = hidden * (width + channels + heads) + channels * kernel + width * hidden
    fields.raw("mamba_expand")
    return _recurrent(heads, groups, size, state_size, weights, state)


def _mamba1(fields: Fields) -> Attention:
    """Mamba: a state per channel, step sizes through a low rank."""
    hidden, state_size, kernel = fields.need("hidden_size"), fields.need("ssm_state_size"), fields.need("conv_kernel")
    expand, rank = fields.raw("mamba_expand"), fields.raw("mamba_dt_rank")
    if not isinstance(expand, int) or not isinstance(rank, int):
        raise fields.refuse("mamba_dt_rank", "mamba_expand or mamba_dt_rank missing")
    width = expand * hidden
    state = width * state_size * _state_bytes(fields) + width * kernel * _CONV_BYTES
    weights = 3 * hidden * width + width * (rank + 2 * state_size) + rank * width + width * (kernel + state_size)
    return _recurrent(width, 1, 1, state_size, weights, state)


def _recurrent(heads: int, kv_heads: int, size: int, value_size: int, weights: int, state: int) -> Attention:
    return Attention(
        kind="recurrent",
        layer_count=1,
        query_head_count=heads,
        kv_head_count=kv_heads,
        head_size=size,
        value_head_size=value_size,
        weight_count=weights,
        state_bytes_per_sequence=state,
    )


def _state_bytes(fields: Fields) -> int:
    written = fields.text("mamba_ssm_cache_dtype") or fields.text("mamba_ssm_dtype")
    found = _STATE_BYTES.get(written)
    if found is None:
        raise fields.refuse("mamba_ssm_cache_dtype", f"unknown state precision {written!r}", "float32 or bfloat16")
    return found


def _nas_block(fields: Fields, block: object) -> Attention:
    """Nemotron-NAS: each block keeps attention, replaces it by one matrix, or drops it."""
    if not isinstance(block, Mapping):
        raise fields.refuse("block_configs", f"expected a block, found {block!r}")
    hidden, heads = fields.need("hidden_size"), fields.need("num_attention_heads")
    attention = block.get("attention")
    if isinstance(attention, Mapping):
        if attention.get("replace_with_linear"):
            return _without_attention(hidden * hidden)
        if attention.get("no_op"):
            return _without_attention()
        group, stated = attention.get("n_heads_in_group"), attention.get("num_key_value_heads")
        kv_heads = stated if isinstance(stated, int) else heads // group if isinstance(group, int) and group else None
    else:
        kv_heads = block.get("kv_heads")
    if not isinstance(kv_heads, int):
        raise fields.refuse("block_configs", f"a block without a count of KV heads: {dict(block)!r}")
    if kv_heads == 0:
        return _without_attention()
    size = head_size(fields)
    return Attention(
        kind="full",
        layer_count=1,
        query_head_count=heads,
        kv_head_count=kv_heads,
        head_size=size,
        value_head_size=size,
        weight_count=2 * hidden * size * (heads + kv_heads),
    )
