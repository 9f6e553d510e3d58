"""Reading a Hugging Face ``config.json`` into a :class:`ModelArchitecture`."""

from collections.abc import Mapping
from dataclasses import replace

from tokenfleet.catalog.attention import attention_layers
from tokenfleet.catalog.config_fields import Fields
from tokenfleet.catalog.families import DECODERS, ENCODERS, LEARNED_POSITIONS, TIED, UNTIED, family
from tokenfleet.catalog.feed_forward import feed_forward_layers
from tokenfleet.catalog.layer_pattern import layer_count
from tokenfleet.catalog.quantization import read_quantization
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.model import ModelArchitecture

_GATED_ACTIVATIONS = ("silu", "swish", "swiglu", "silu_and_mul", "swigluoai")


def read_config(config: Mapping[str, object], *, name: str, source: str, partial: bool = False) -> ModelArchitecture:
    """The architecture that a model's ``config.json`` describes.

    Args:
        config: the parsed file; nested language parts of multimodal models are found in it.
        name: what the model is called, for people.
        source: file or address, for errors and for the record.
        partial: accept a config without vocabulary or feed-forward width; the answer then names them in
            ``missing`` and has no parameter count.

    Returns:
        The architecture; ``notes`` says what was assumed. Parameter counts follow from matrix shapes.

    Raises:
        BadInput: a key that is missing or cannot be read, each with file and key. Nothing is guessed.
    """
    fields = Fields(config, name=name, source=source)
    layers = layer_count(fields)
    _check(fields, layers, partial=partial)
    attention = attention_layers(fields, layers)
    feed_forward = feed_forward_layers(fields, layers)
    encoder = fields.model_type in ENCODERS
    architecture = ModelArchitecture(
        name=name,
        source=source,
        model_type=fields.model_type,
        layer_count=layers,
        hidden_size=fields.need("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        max_context_tokens=_context(fields),
        tied_embeddings=_tied(fields, encoder=encoder),
        attention=attention,
        feed_forward=feed_forward,
        quantization=read_quantization(fields),
        encoder_only=encoder,
        vision_parameter_count=_vision(fields),
        position_parameter_count=_positions(fields),
        notes=(),
    )
    return _finished(fields, architecture, partial=partial)


def _finished(fields: Fields, read: ModelArchitecture, *, partial: bool) -> ModelArchitecture:
    """The architecture with its notes, or every problem that the reading left open."""
    problems = fields.unread_shapes()
    if not partial:
        problems += fields.missing(read.missing)
    if problems:
        raise BadInput(problems)
    if read.missing:
        fields.notes.append(f"partial facts: {', '.join(read.missing)} unknown, so weights are unknown too")
    if read.max_context_tokens is None:
        fields.notes.append("the longest context is unknown")
    return replace(read, notes=tuple(dict.fromkeys(fields.notes)))


_REFUSED = {
    "is_encoder_decoder": "an encoder-decoder model",
    "cross_attention_layers": "cross-attention layers",
    "num_kv_shared_layers": "layers that share the KV cache of others",
    "hidden_size_per_layer_input": "embeddings of their own for each layer",
}

_SOFTMAX = 1
"""MiniMax marks layers with ordinary attention by 1."""


def _check(fields: Fields, layers: int, *, partial: bool) -> None:
    """Everything that a reading cannot go without, all problems at once."""
    needed = ["hidden_size", "num_attention_heads"] + ([] if layers else ["num_hidden_layers"])
    if not partial:
        needed.append("vocab_size")
    problems = fields.missing(needed)
    problems += [
        Problem(fields.at(key), f"{fields.name}: {what}", "this model is refused")
        for key, what in _REFUSED.items()
        if fields.raw(key)
    ]
    if any(kind != _SOFTMAX for kind in fields.items("attn_type_list") or []):
        what = "linear attention of a kind that cannot be read yet"
        problems.append(Problem(fields.at("attn_type_list"), f"{fields.name}: {what}", "this model is refused"))
    if not fields.model_type:
        problems.append(Problem(fields.at("model_type"), f"{fields.name}: missing", "add model_type to the config"))
    elif family(fields.model_type) not in DECODERS | ENCODERS:
        problems += _unknown_family(fields)
    if problems:
        raise BadInput(problems)


def _unknown_family(fields: Fields) -> list[Problem]:
    """A new family is read as a decoder only if its config says all that this needs."""
    activation = fields.text("hidden_act")
    if activation in _GATED_ACTIVATIONS:
        fields.notes.append(f"model_type {fields.model_type} is new here: read as a decoder with gated feed-forward")
        return []
    what = f"unknown model_type {fields.model_type!r} with activation {activation or 'not given'!r}"
    mend = "gated feed-forward is assumed of unknown families only with hidden_act silu"
    return [Problem(fields.at("model_type"), f"{fields.name}: {what}", mend)]


def _tied(fields: Fields, *, encoder: bool) -> bool:
    stated = fields.flag("tie_word_embeddings")
    if encoder:
        return True
    if stated is not None:
        return stated
    kind = family(fields.model_type)
    if kind not in TIED | UNTIED:
        fields.notes.append("tie_word_embeddings is not in the file: counted as two matrices")
    return kind in TIED


def _context(fields: Fields) -> int | None:
    """Longest context; YaRN stretches the original one by its factor."""
    stated = fields.count("max_position_embeddings")
    scaling = fields.part("rope_scaling") or fields.part("rope_parameters")
    kind = scaling.get("rope_type") or scaling.get("type")
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(factor, int | float) and isinstance(original, int):
        return max(round(original * factor), stated or 0)
    return stated


def _positions(fields: Fields) -> int:
    if family(fields.model_type) not in LEARNED_POSITIONS:
        return 0
    return fields.need("max_position_embeddings") * fields.need("hidden_size")


def _vision(fields: Fields) -> int:
    """Estimate for an image tower: attention, feed-forward and the merger into the language model."""
    tower = fields.part("vision_config") or fields.part("vision")
    sizes = [tower.get(key) for key in ("hidden_size", "intermediate_size")]
    depth = tower.get("depth") or tower.get("num_hidden_layers")
    if not tower:
        return 0
    if not all(isinstance(size, int) for size in (*sizes, depth)):
        fields.notes.append("the image tower cannot be read: its weights are left out")
        return 0
    hidden, width, layers = (int(str(size)) for size in (*sizes, depth))
    gated = tower.get("hidden_act") in _GATED_ACTIVATIONS or "window_size" in tower
    total = layers * (4 * hidden * hidden + (3 if gated else 2) * hidden * width)
    merge, out = tower.get("spatial_merge_size"), tower.get("out_hidden_size")
    if isinstance(merge, int) and isinstance(out, int):
        merged = hidden * merge * merge
        total += merged * (merged + out)
    fields.notes.append(f"image tower estimated at {total / 1e9:.2f} billion parameters, beside the language model")
    return total
