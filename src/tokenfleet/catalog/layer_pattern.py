"""Which kind of attention each layer of a config has."""

from collections.abc import Callable
from typing import Literal

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.catalog.families import ALL_LAYERS_WINDOWED, FULL_EVERY, WINDOW_OFF_UNLESS_ASKED, family
from tokenfleet.domain.errors import BadInput

Kind = Literal["full", "sliding", "chunked", "linear", "mamba", "mamba1", "none"]
Pattern = list[Kind]

_WORDS: dict[str, Kind] = {
    "full_attention": "full",
    "attention": "full",
    "global_attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
    "moe": "none",
    "mlp": "none",
}
_LETTERS: dict[str, Kind] = {"M": "mamba", "*": "full", "-": "none", "E": "none"}

_LLAMA4_DEFAULT_INTERVAL = 4
"""Every fourth layer attends to everything when the config does not say which."""


def layer_count(fields: Fields) -> int:
    """Layers of the stack, from the count or from the pattern that replaces it."""
    stated = fields.count("num_hidden_layers")
    if stated:
        return stated
    written = fields.text("hybrid_override_pattern") or fields.items("layer_types")
    counts = fields.part("layers_block_type_counts")
    total = sum(value for value in counts.values() if isinstance(value, int))
    return len(written) if written else total


def layer_pattern(fields: Fields, layers: int) -> Pattern:
    """The kind of each layer, first to last; the order is arbitrary where the source gives counts alone.

    Raises:
        BadInput: a kind that no rule knows, a list of the wrong length, a window whose layers nothing names.
    """
    rules: tuple[Callable[[Fields, int], Pattern | None], ...] = (
        _letters,
        _block_counts,
        _kimi_lists,
        _binary_list,
        _named_layers,
        _attention_indices,
        _interval,
        _jamba,
        _chunked,
        _windowed,
    )
    for rule in rules:
        pattern = rule(fields, layers)
        if pattern is not None:
            return pattern
    return ["full"] * layers


def _letters(fields: Fields, layers: int) -> Pattern | None:
    """Nemotron-H: one letter per layer."""
    letters = fields.text("hybrid_override_pattern")
    if not letters:
        return None
    fields.expect_entries("hybrid_override_pattern", len(letters), layers)
    unknown = set(letters) - set(_LETTERS)
    if unknown:
        raise fields.refuse("hybrid_override_pattern", f"unknown layer letters {', '.join(sorted(unknown))}")
    return [_LETTERS[letter] for letter in letters[:layers]]


def _block_counts(fields: Fields, layers: int) -> Pattern | None:
    counts = fields.part("layers_block_type_counts")
    if not counts:
        return None
    names = [name for name, count in counts.items() for _ in range(count if isinstance(count, int) else 0)]
    return _words(fields, "layers_block_type_counts", names, layers)


def _words(fields: Fields, key: str, names: list[str], layers: int) -> Pattern:
    fields.expect_entries(key, len(names), layers)
    unknown = sorted(set(names) - set(_WORDS))
    if unknown:
        raise fields.refuse(key, f"unknown layer kinds {', '.join(unknown)}", f"known: {', '.join(_WORDS)}")
    pattern = [_WORDS[name] for name in names[:layers]]
    if "sliding" in pattern and not fields.count("sliding_window"):
        raise fields.refuse("sliding_window", "layers have a window but its size is missing", "add sliding_window")
    return pattern


def _kimi_lists(fields: Fields, layers: int) -> Pattern | None:
    """Kimi: the full-attention layers are listed, counted from 1."""
    listed = fields.part("linear_attn_config").get("full_attn_layers")
    if not isinstance(listed, list):
        return None
    return ["full" if layer in listed else "linear" for layer in range(1, layers + 1)]


def _binary_list(fields: Fields, layers: int) -> Pattern | None:
    """MiMo: 1 marks a windowed layer."""
    marks = fields.items("hybrid_layer_pattern")
    if marks is None:
        return None
    fields.expect_entries("hybrid_layer_pattern", len(marks), layers)
    return ["sliding" if mark else "full" for mark in marks[:layers]]


def _named_layers(fields: Fields, layers: int) -> Pattern | None:
    names = fields.items("layer_types")
    if names is None:
        return None
    if fields.flag("use_sliding_window") is False:
        names = ["full_attention" if name == "sliding_attention" else name for name in names]
    return _words(fields, "layer_types", [str(name) for name in names], layers)


def _attention_indices(fields: Fields, layers: int) -> Pattern | None:
    """Bamba: the attention layers are listed, counted from 0; the others are Mamba-2."""
    listed = fields.items("attn_layer_indices")
    if listed is None:
        return None
    return ["full" if layer in listed else "mamba" for layer in range(layers)]


def _interval(fields: Fields, layers: int) -> Pattern | None:
    """Qwen3-Next: every n-th layer is full attention, the others linear."""
    every = fields.count("full_attention_interval")
    if not every:
        return None
    return ["full" if layer % every == 0 else "linear" for layer in range(1, layers + 1)]


def _jamba(fields: Fields, layers: int) -> Pattern | None:
    every, offset = fields.raw("attn_layer_period"), fields.raw("attn_layer_offset")
    if not isinstance(every, int):
        return None
    first = offset if isinstance(offset, int) else 0
    return ["full" if layer % every == first else "mamba1" for layer in range(layers)]


def _chunked(fields: Fields, layers: int) -> Pattern | None:
    """Llama 4: layers without rotary embedding attend to everything, the others to their chunk."""
    if not fields.count("attention_chunk_size"):
        return None
    fields.notes.append("chunked attention: how much of a chunk is kept depends on the engine")
    rotary = fields.items("no_rope_layers")
    if rotary:
        fields.expect_entries("no_rope_layers", len(rotary), layers)
        return ["chunked" if mark else "full" for mark in rotary[:layers]]
    every = fields.raw("no_rope_layer_interval")
    step = every if isinstance(every, int) and every > 0 else _LLAMA4_DEFAULT_INTERVAL
    return ["full" if layer % step == 0 else "chunked" for layer in range(1, layers + 1)]


def _windowed(fields: Fields, layers: int) -> Pattern | None:
    """A window without a list of layers: the family says which layers have it."""
    window, context = fields.count("sliding_window"), fields.count("max_position_embeddings")
    asked, kind = fields.flag("use_sliding_window"), family(fields.model_type)
    off = asked is False or (asked is None and kind in WINDOW_OFF_UNLESS_ASKED)
    if not window or off or (context and window >= context):
        return None
    letters = fields.raw("sliding_window_pattern")
    if isinstance(letters, str) and letters:
        return [("sliding" if letters[layer % len(letters)] == "L" else "full") for layer in range(layers)]
    every = letters if isinstance(letters, int) and letters > 0 else FULL_EVERY.get(kind)
    if every:
        return ["full" if layer % every == 0 else "sliding" for layer in range(1, layers + 1)]
    if kind in WINDOW_OFF_UNLESS_ASKED:
        first = fields.raw("max_window_layers")
        start = first if isinstance(first, int) else layers
        return ["full" if layer < start else "sliding" for layer in range(layers)]
    if kind in ALL_LAYERS_WINDOWED:
        return ["sliding"] * layers
    raise _which_layers(fields, window)


def _which_layers(fields: Fields, window: int) -> BadInput:
    return fields.refuse(
        "sliding_window",
        f"a window of {window} tokens, but nothing says which layers have it",
        "add layer_types with full_attention or sliding_attention for each layer, or use_sliding_window: false",
    )
