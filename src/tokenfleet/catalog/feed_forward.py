"""Feed-forward blocks of a config: dense, mixtures of experts, and which layers have which."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.catalog.families import FOUR_TIMES_WIDE, PLAIN_FEED_FORWARD, family
from tokenfleet.domain.model import FeedForward

_NAS_MULTIPLE = 256
"""Nemotron-NAS rounds the width of a block up to a multiple of this."""


def feed_forward_layers(fields: Fields, layers: int) -> tuple[FeedForward, ...]:
    """One entry per feed-forward shape, in the order of first appearance; empty when the widths are not given.

    Raises:
        BadInput: experts without a count per token, or a list of the wrong length.
    """
    blocks = fields.items("block_configs") or fields.items("nas_blocks")
    if blocks is not None:
        return _grouped([_nas_block(fields, block) for block in blocks[:layers]])
    kinds = _kinds(fields, layers)
    shapes: dict[str, FeedForward] = {}
    for kind in dict.fromkeys(kinds):
        shape = _shape(fields, kind)
        if shape is None:
            return ()
        shapes[kind] = shape
    return _grouped([shapes[kind] for kind in kinds])


def _grouped(blocks: list[FeedForward]) -> tuple[FeedForward, ...]:
    counts: dict[FeedForward, int] = {}
    for block in blocks:
        counts[block] = counts.get(block, 0) + 1
    return tuple(replace(block, layer_count=count) for block, count in counts.items())


def _shape(fields: Fields, kind: str) -> FeedForward | None:
    if kind == "none":
        return FeedForward(layer_count=1, intermediate_size=0)
    return _experts(fields) if kind == "experts" else _dense(fields)


def _matrices(fields: Fields) -> int:
    return 2 if family(fields.model_type) in PLAIN_FEED_FORWARD else 3


def _expert_count(fields: Fields) -> int:
    return fields.count("num_experts") or 0


def _kinds(fields: Fields, layers: int) -> list[str]:
    """``dense``, ``experts`` or ``none`` for each layer."""
    letters = fields.text("hybrid_override_pattern")
    if letters:
        return [{"E": "experts", "-": "dense"}.get(letter, "none") for letter in letters[:layers]]
    block_counts = fields.part("layers_block_type_counts")
    if block_counts:
        return _expand(block_counts, {"moe": "experts", "mlp": "dense"}, "none")
    if not _expert_count(fields):
        return ["dense"] * layers
    rules: tuple[Callable[[Fields, int], list[bool] | None], ...] = (
        _named,
        _counted,
        _listed,
        _first_dense,
        _interleaved,
        _sparse_step,
        _jamba,
        _ernie,
    )
    for rule in rules:
        marks = rule(fields, layers)
        if marks is not None:
            return ["experts" if mark else "dense" for mark in marks[:layers]]
    return ["experts"] * layers


def _expand(counts: Mapping[str, object], words: Mapping[str, str], other: str) -> list[str]:
    """Counts per kind as a list; the order of the layers does not matter to memory or step time."""
    return [
        words.get(name, other) for name, count in counts.items() for _ in range(count if isinstance(count, int) else 0)
    ]


def _named(fields: Fields, layers: int) -> list[bool] | None:
    names = fields.items("mlp_layer_types")
    if names is None:
        return None
    fields.expect_entries("mlp_layer_types", len(names), layers)
    return [name == "sparse" for name in names]


def _counted(fields: Fields, layers: int) -> list[bool] | None:
    counts = fields.part("moe_layer_freq_counts") or fields.part("mlp_layer_types_counts")
    marks = [word == "experts" for word in _expand(counts, {"1": "experts", "sparse": "experts"}, "dense")]
    if not marks:
        return None
    fields.expect_entries("moe_layer_freq_counts", len(marks), layers)
    return marks


def _listed(fields: Fields, layers: int) -> list[bool] | None:
    """Layers with experts by their numbers: a list, a text list, or one mark per layer."""
    marks = fields.items("moe_layer_freq")
    if marks is not None:
        fields.expect_entries("moe_layer_freq", len(marks), layers)
        return [bool(mark) for mark in marks]
    numbers = fields.items("moe_layers")
    text = fields.text("moe_layers_enum")
    if text:
        numbers = [int(number) for number in text.split(",") if number.strip().isdigit()]
    return [layer in numbers for layer in range(layers)] if numbers else None


def _first_dense(fields: Fields, layers: int) -> list[bool] | None:
    first, every = fields.count("first_k_dense_replace"), fields.raw("moe_layer_freq")
    if first is None:
        return None
    step = every if isinstance(every, int) and every > 0 else 1
    return [layer >= first and layer % step == 0 for layer in range(layers)]


def _interleaved(fields: Fields, layers: int) -> list[bool] | None:
    step = fields.count("interleave_moe_layer_step")
    return [layer % step == 0 for layer in range(1, layers + 1)] if step else None


def _sparse_step(fields: Fields, layers: int) -> list[bool] | None:
    step, dense = fields.count("decoder_sparse_step"), fields.items("mlp_only_layers") or []
    if not step and not dense:
        return None
    return [(layer + 1) % (step or 1) == 0 and layer not in dense for layer in range(layers)]


def _jamba(fields: Fields, layers: int) -> list[bool] | None:
    every, offset = fields.raw("expert_layer_period"), fields.raw("expert_layer_offset")
    if not isinstance(every, int):
        return None
    return [layer % every == (offset if isinstance(offset, int) else 0) for layer in range(layers)]


def _ernie(fields: Fields, layers: int) -> list[bool] | None:
    every, start = fields.raw("moe_layer_interval"), fields.raw("moe_layer_start_index")
    if not isinstance(every, int) or not isinstance(start, int):
        return None
    return [layer >= start and (layer + 1) % every == 0 for layer in range(layers)]


def _dense(fields: Fields) -> FeedForward | None:
    hidden = fields.need("hidden_size")
    width = (
        fields.count("dense_intermediate_size")
        or fields.count("intermediate_size_mlp")
        or (fields.count("shared_expert_intermediate_size") if fields.model_type == "granitemoehybrid" else None)
        or fields.count("intermediate_size")
        or (4 * hidden if family(fields.model_type) in FOUR_TIMES_WIDE else None)
    )
    if width is None:
        return None
    matrices = _matrices(fields)
    return FeedForward(
        layer_count=1,
        intermediate_size=width,
        matrix_count=matrices,
        every_token_weight_count=matrices * hidden * width,
    )


def _experts(fields: Fields) -> FeedForward | None:
    hidden, experts = fields.need("hidden_size"), _expert_count(fields)
    chosen = fields.count("num_experts_per_tok")
    if not chosen:
        raise fields.refuse("num_experts_per_tok", f"{experts} experts, but not how many a token visits", "add it")
    width = fields.count("moe_intermediate_size") or fields.count("intermediate_size")
    if not width:
        return None
    matrices = _matrices(fields)
    latent = fields.count("moe_latent_size")
    shared = _shared_width(fields, width)
    projections = 2 * hidden * latent if latent else 0
    return FeedForward(
        layer_count=1,
        intermediate_size=width,
        matrix_count=matrices,
        expert_count=experts,
        experts_per_token_count=chosen,
        shared_intermediate_size=shared,
        every_token_weight_count=matrices * hidden * shared + hidden * experts + projections,
        expert_weight_count=matrices * (latent or hidden) * width,
    )


def _shared_width(fields: Fields, expert_width: int) -> int:
    """Width of what every token visits beside the routed experts."""
    kind = family(fields.model_type)
    if kind in ("llama4", "gemma4"):
        return fields.need("intermediate_size")
    stated = fields.count("shared_expert_intermediate_size")
    if stated is not None:
        return stated
    return (fields.count("n_shared_experts") or 0) * expert_width


def _nas_block(fields: Fields, block: object) -> FeedForward:
    """Nemotron-NAS: each block has a width of its own, one matrix, or nothing."""
    if not isinstance(block, Mapping):
        raise fields.refuse("block_configs", f"expected a block, found {block!r}")
    hidden, written = fields.need("hidden_size"), block.get("ffn")
    part = written if isinstance(written, Mapping) else block
    if part.get("no_op"):
        return FeedForward(layer_count=1, intermediate_size=0)
    if part.get("replace_with_linear"):
        return FeedForward(
            layer_count=1, intermediate_size=hidden, matrix_count=1, every_token_weight_count=hidden * hidden
        )
    width, multiple = part.get("intermediate_size"), part.get("ffn_mult")
    if not isinstance(width, int):
        if not isinstance(multiple, int | float):
            raise fields.refuse("block_configs", f"a block without a feed-forward width: {dict(block)!r}")
        width = -(-int(2 * multiple * hidden / 3) // _NAS_MULTIPLE) * _NAS_MULTIPLE
    return FeedForward(layer_count=1, intermediate_size=width, every_token_weight_count=3 * hidden * width)
