"""How a checkpoint stores its weights: from a config's quantization block, or from the ending of its name."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.domain.model import CheckpointQuantization, NumberFormat, Part

_SCALE_BITS = 16
_BLOCK_SCALE_BITS = 32
"""Block-wise FP8 keeps a 32-bit scale for each block of weights."""
_MX_GROUP, _NV_GROUP, _MICRO_SCALE_BITS = 32, 16, 8
"""MXFP4 shares an 8-bit scale among 32 weights, NVFP4 among 16."""
_NF4_GROUP = 64
_NF4_DOUBLE_BITS = 4.127
"""Bits of an NF4 weight with its scales quantized again."""

MXFP4_BITS = 4 + _MICRO_SCALE_BITS / _MX_GROUP
NVFP4_BITS = 4 + _MICRO_SCALE_BITS / _NV_GROUP

_ALL: tuple[Part, ...] = ("attention", "feed_forward", "experts")
_PROBES: dict[Part, tuple[str, ...]] = {
    "attention": ("self_attn.q_proj", "self_attn.o_proj", "self_attn.kv_b_proj"),
    "feed_forward": ("mlp.gate_proj", "mlp.down_proj", "mlp.shared_experts.down_proj"),
    "experts": ("mlp.experts.3.down_proj", "mlp.experts", "block_sparse_moe.experts.3.w2"),
}
"""Modules that stand for a part when a list of exceptions is read."""
_PROBED_LAYERS = 5

Block = Mapping[str, object]


def read_quantization(fields: Fields) -> CheckpointQuantization | None:
    """Quantization of the checkpoint; ``None`` when the weights are plain 16 or 32 bit.

    A method whose bits the config does not give, or that nobody here knows, has ``bits_per_weight`` ``None``.
    """
    block = fields.part("quantization_config") or fields.part("compression_config") or fields.part("checkpoint_quant")
    if not block:
        return None
    nested = block.get("quantization")
    if isinstance(nested, Mapping):
        block = {**block, **nested}
    method = str(block.get("quant_method") or block.get("quant_algo") or block.get("producer") or "unnamed").lower()
    reader = _READERS.get(method, _unknown)
    found = replace(reader(block), method=method)
    if found.bits_per_weight is None:
        fields.notes.append(f"quantization {method}: the config does not say how many bits a weight takes")
    found = _with_exceptions(fields, found, _exceptions(block))
    if fields.text("expert_dtype") == "fp4":
        found = replace(found, expert_bits_per_weight=MXFP4_BITS)
    return found


def _exceptions(block: Block) -> tuple[str, ...]:
    for key in (
        "modules_to_not_convert",
        "ignore",
        "ignored_layers",
        "exclude_modules",
        "exclude",
        "llm_int8_skip_modules",
    ):
        listed = block.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return tuple(str(one) for one in listed)
    return ()


def _with_exceptions(fields: Fields, found: CheckpointQuantization, listed: tuple[str, ...]) -> CheckpointQuantization:
    """Takes out the parts of which most modules are listed as exceptions."""
    kept: list[Part] = []
    for part in found.quantized_parts:
        share = _ignored_fraction(part, listed, fields.count("num_hidden_layers") or _PROBED_LAYERS)
        if 0 < share < 1:
            fields.notes.append(
                f"part of {part} is not quantized; counted as {'16 bit' if share > 0.5 else 'quantized'}"
            )
        if share <= 0.5:
            kept.append(part)
    return replace(found, unquantized=listed, quantized_parts=tuple(kept))


def _ignored_fraction(part: Part, listed: tuple[str, ...], layers: int) -> float:
    if part == "head":
        return float(any(_matches(pattern, "lm_head") for pattern in listed))
    numbers = {round((step + 1) * (layers - 1) / (_PROBED_LAYERS + 1)) for step in range(_PROBED_LAYERS)}
    shares = []
    for probe in _PROBES[part]:
        modules = [f"model.layers.{number}.{probe}" for number in numbers]
        shares.append(sum(any(_matches(one, module) for one in listed) for module in modules) / len(modules))
    if part == "experts":
        return max(shares)
    return sum(shares) / len(shares)


def _matches(pattern: str, module: str) -> bool:
    """Whether an exception names a module: a regular expression, a glob, or a name inside the dotted path."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    if "*" in pattern:
        bare = pattern.removeprefix("*")
        return any(fnmatchcase(module, glob) for glob in (pattern, f"{pattern}.*", f"*.{bare}", f"*.{bare}.*"))
    bare = pattern.removeprefix("language_model.").replace("model.language_model.", "model.")
    return f".{bare}." in f".{module}."


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _fp8(block: Block) -> CheckpointQuantization:
    sizes = block.get("weight_block_size")
    bits = 8.0
    if isinstance(sizes, Sequence) and len(sizes) == 2 and all(_integer(size) for size in sizes):
        bits += _BLOCK_SCALE_BITS / (sizes[0] * sizes[1])
    return _scheme("fp8", bits, weight_only=False)


def _scheme(
    number_format: NumberFormat, bits: float | None, *, weight_only: bool, group: int | None = None,
    parts: tuple[Part, ...] = _ALL,
) -> CheckpointQuantization:  # fmt: skip
    return CheckpointQuantization(
        method=number_format,
        bits_per_weight=bits,
        group_size=group,
        number_format=number_format,
        weight_only=weight_only,
        quantized_parts=parts,
    )


def _integers(bits: int, group: int | None, *, weight_only: bool, zero_points: bool = True) -> CheckpointQuantization:
    """INT4 or INT8 with one 16-bit scale, and often a zero point, per group; scales per row weigh nothing."""
    overhead = (_SCALE_BITS + (bits if zero_points else 0)) / group if group else 0.0
    kinds: dict[int, NumberFormat] = {4: "int4", 8: "int8"}
    return _scheme(kinds.get(bits, "other"), bits + overhead, weight_only=weight_only, group=group)


def _gptq(block: Block) -> CheckpointQuantization:
    bits = _integer(block.get("bits")) or _integer(block.get("w_bit"))
    group = _integer(block.get("group_size")) or _integer(block.get("q_group_size"))
    if bits is None:
        return _unknown(block)
    found = _integers(bits, group, weight_only=True)
    return replace(found, quantized_parts=(*_ALL, "head")) if block.get("lm_head") is True else found


def _mxfp4(_block: Block) -> CheckpointQuantization:
    """Transformers' MXFP4 covers the experts alone."""
    return _scheme("mxfp4", MXFP4_BITS, weight_only=True, group=_MX_GROUP, parts=("experts",))


def _nvfp4(_block: Block) -> CheckpointQuantization:
    return _scheme("nvfp4", NVFP4_BITS, weight_only=False, group=_NV_GROUP)


def _modelopt(block: Block) -> CheckpointQuantization:
    algorithm = str(block.get("quant_algo") or "").upper()
    if algorithm.startswith("FP8"):
        return _scheme("fp8", 8.0, weight_only=False)
    if "NVFP4" in algorithm or block.get("quant_method") == "modelopt_fp4":
        return _nvfp4(block)
    if algorithm.startswith("W4A16"):
        return _integers(4, _integer(block.get("group_size")) or 128, weight_only=True, zero_points=False)
    return _compressed_tensors(block)


def _compressed_tensors(block: Block) -> CheckpointQuantization:
    """One group of targets; several groups with different weights are not told apart."""
    groups = block.get("config_groups")
    schemes = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    weights = [scheme["weights"] for scheme in schemes if isinstance(scheme.get("weights"), Mapping)]
    if not weights or any(
        (one.get("num_bits"), one.get("type")) != (weights[0].get("num_bits"), weights[0].get("type"))
        for one in weights
    ):
        return _unknown(block)
    bits, group = _integer(weights[0].get("num_bits")), _integer(weights[0].get("group_size"))
    weight_only = not isinstance(schemes[0].get("input_activations"), Mapping)
    targets = [str(target) for target in schemes[0].get("targets") or ["Linear"]]
    if bits is None:
        return _unknown(block)
    if weights[0].get("type") == "float":
        found = _floats(bits, group, weights[0], weight_only=weight_only)
    else:
        found = _integers(bits, group, weight_only=weight_only, zero_points=weights[0].get("symmetric") is False)
    return replace(found, quantized_parts=(*_ALL, "head")) if "Linear" in targets else found


def _floats(bits: int, group: int | None, weights: Block, *, weight_only: bool) -> CheckpointQuantization:
    if bits == 8:
        return replace(_fp8({"weight_block_size": weights.get("block_structure")}), weight_only=weight_only)
    if bits == 4:
        kind: NumberFormat = "mxfp4" if group == _MX_GROUP else "nvfp4"
        size = group or _NV_GROUP
        return _scheme(kind, 4 + _MICRO_SCALE_BITS / size, weight_only=weight_only, group=size)
    return _scheme("other", None, weight_only=weight_only)


def _bitsandbytes(block: Block) -> CheckpointQuantization:
    if block.get("load_in_4bit"):
        double = block.get("bnb_4bit_use_double_quant") is True
        bits = _NF4_DOUBLE_BITS if double else 4 + _BLOCK_SCALE_BITS / _NF4_GROUP
        return _scheme("int4", bits, weight_only=True, group=_NF4_GROUP)
    return _scheme("int8", 8.0, weight_only=True) if block.get("load_in_8bit") else _unknown(block)


def _quark(block: Block) -> CheckpointQuantization:
    whole = block.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    dtype = str(weight.get("dtype")) if isinstance(weight, Mapping) else ""
    if dtype.startswith("fp8"):
        return _scheme("fp8", 8.0, weight_only=False)
    return _scheme("mxfp4", MXFP4_BITS, weight_only=False, group=_MX_GROUP) if dtype == "fp4" else _unknown(block)


def _unknown(_block: Block) -> CheckpointQuantization:
    return _scheme("other", None, weight_only=True)


_READERS: dict[str, Callable[[Block], CheckpointQuantization]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _gptq,
    "auto-round": _gptq,
    "intel/auto-round": _gptq,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
}

_GROUP = 128
"""Group size that INT4 checkpoints use unless their config says otherwise."""

_ENDINGS: tuple[tuple[str, CheckpointQuantization | None], ...] = (
    (r"fp8[-.]block", _scheme("fp8", 8 + _BLOCK_SCALE_BITS / _GROUP**2, weight_only=False)),
    (r"(float8|fp8)([-.](dynamic|kv|static|torchao))?", _scheme("fp8", 8.0, weight_only=False)),
    (r"(quantized[-.])?w8a8([-.](int8))?|int8|smoothquant", _integers(8, None, weight_only=False)),
    (r"(quantized[-.])?w8a16|gptq[-.]int8|gptq[-.]8bit", _integers(8, _GROUP, weight_only=True)),
    (
        r"(quantized[-.])?w4a16([-.]g128)?|awq([-.](int4|4bit))?|gptq([-.](int4|4bit))?|(autoround[-.])?int4|4bit",
        _integers(4, _GROUP, weight_only=True),
    ),
    (r"nvfp4|fp4", _nvfp4({})),
    (r"mxfp4", _scheme("mxfp4", MXFP4_BITS, weight_only=True, group=_MX_GROUP)),
    (r"(unsloth[-.])?(bnb[-.]4bit|nf4)", _bitsandbytes({"load_in_4bit": True})),
    (r"bf16|fp16", None),
)
"""Endings of checkpoint names; the longest that fits is meant."""


def split_ending(name: str) -> tuple[str, str, CheckpointQuantization | None] | None:
    """Name without a known quantization ending, that ending, and what it means.

    ``Llama-3.1-8B-FP8-dynamic`` gives ``Llama-3.1-8B``, ``FP8-dynamic`` and FP8 in all linear layers; ``None`` when
    the name ends in nothing known. The last of the three is ``None`` for plain 16-bit endings.
    """
    found = None
    for pattern, scheme in _ENDINGS:
        match = re.fullmatch(rf"(?P<base>.+?)[-_. ](?P<ending>{pattern})", name, flags=re.IGNORECASE)
        if match and (found is None or len(match["base"]) < len(found[0])):
            found = match["base"], match["ending"], scheme
    return found
