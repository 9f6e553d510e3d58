"""How a checkpoint stores its weights, from the quantization block of its config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tokenfleet.catalog.config_fields import Fields
from tokenfleet.catalog.quantized_parts import named_fraction
from tokenfleet.domain.model import CheckpointQuantization, NumberFormat, Part

SCALE_BITS = 16
BLOCK_SCALE_BITS = 32
"""Block-wise FP8 keeps a 32-bit scale for each block of weights."""
MX_GROUP, NV_GROUP, MICRO_SCALE_BITS = 32, 16, 8
"""MXFP4 shares an 8-bit scale among 32 weights, NVFP4 among 16."""
NF4_GROUP = 64
NF4_DOUBLE_BITS = 4.127
"""Bits of an NF4 weight with its scales quantized again."""

LINEAR: tuple[Part, ...] = ("attention", "feed_forward", "experts")
_MOSTLY = 0.5

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
    method = str(block.get("quant_method") or block.get("quant_algo") or "unnamed").lower()
    found = replace(_READERS.get(method, _unknown)(fields, block), method=method)
    if found.bits_per_weight is None:
        fields.notes.append(f"quantization {method}: the config does not say how many bits a weight takes")
    found = _without(fields, found, _exceptions(block))
    if fields.text("expert_dtype") == "fp4" and found.expert_bits_per_weight is None:
        found = replace(found, expert_bits_per_weight=4 + MICRO_SCALE_BITS / MX_GROUP)
    return found


_EXCEPTION_KEYS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "exclude",
    "llm_int8_skip_modules",
)


def _exceptions(block: Block) -> tuple[str, ...]:
    for key in _EXCEPTION_KEYS:
        listed = block.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return tuple(str(one) for one in listed)
    return ()


def _without(fields: Fields, found: CheckpointQuantization, listed: tuple[str, ...]) -> CheckpointQuantization:
    """Takes out the parts of which most modules are listed as exceptions."""
    kept: list[Part] = []
    for part in found.quantized_parts:
        share = named_fraction(fields, part, listed)
        if share <= _MOSTLY:
            kept.append(part)
        if 0 < share < 1:
            counted = "quantized" if share <= _MOSTLY else "16 bit"
            fields.notes.append(f"some modules of {part} are quantized and some are not: counted as {counted}")
    return replace(found, unquantized=listed, quantized_parts=tuple(kept))


def scheme(
    number_format: NumberFormat,
    bits: float | None,
    *,
    weight_only: bool,
    group: int | None = None,
    parts: tuple[Part, ...] = LINEAR,
) -> CheckpointQuantization:
    """A quantization of ``parts`` with ``bits`` stored per weight, scales included."""
    return CheckpointQuantization(
        method=number_format,
        bits_per_weight=bits,
        group_size=group,
        number_format=number_format,
        weight_only=weight_only,
        quantized_parts=parts,
    )


def integers(bits: int, group: int | None, *, weight_only: bool, zero_points: bool = True) -> CheckpointQuantization:
    """INT4 or INT8 with one 16-bit scale, and often a zero point, per group; scales per row weigh nothing."""
    overhead = (SCALE_BITS + (bits if zero_points else 0)) / group if group else 0.0
    kinds: dict[int, NumberFormat] = {4: "int4", 8: "int8"}
    return scheme(kinds.get(bits, "other"), bits + overhead, weight_only=weight_only, group=group)


def fp8(block_size: object = None, *, weight_only: bool = False) -> CheckpointQuantization:
    """FP8 with scales per tensor, or per block of ``block_size`` rows and columns."""
    bits = 8.0
    if isinstance(block_size, Sequence) and len(block_size) == 2:
        rows, columns = (_integer(size) for size in block_size)
        bits += BLOCK_SCALE_BITS / (rows * columns) if rows and columns else 0.0
    return scheme("fp8", bits, weight_only=weight_only)


def micro_fp4(group: int, *, weight_only: bool) -> CheckpointQuantization:
    """MXFP4 in groups of 32, NVFP4 in groups of 16."""
    kind: NumberFormat = "mxfp4" if group == MX_GROUP else "nvfp4"
    return scheme(kind, 4 + MICRO_SCALE_BITS / group, weight_only=weight_only, group=group)


def normal_float4(*, double: bool = False) -> CheckpointQuantization:
    """NF4 in groups of 64, as bitsandbytes stores it."""
    bits = NF4_DOUBLE_BITS if double else 4 + BLOCK_SCALE_BITS / NF4_GROUP
    return scheme("int4", bits, weight_only=True, group=NF4_GROUP)


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _unknown(_fields: Fields, _block: Block) -> CheckpointQuantization:
    return scheme("other", None, weight_only=True)


def _fp8(_fields: Fields, block: Block) -> CheckpointQuantization:
    return fp8(block.get("weight_block_size"))


def _gptq(fields: Fields, block: Block) -> CheckpointQuantization:
    bits = _integer(block.get("bits")) or _integer(block.get("w_bit"))
    group = _integer(block.get("group_size")) or _integer(block.get("q_group_size"))
    if bits is None:
        return _unknown(fields, block)
    found = integers(bits, group, weight_only=True)
    return replace(found, quantized_parts=(*LINEAR, "head")) if block.get("lm_head") is True else found


def _mxfp4(_fields: Fields, _block: Block) -> CheckpointQuantization:
    """The method of that name covers the experts alone."""
    return replace(micro_fp4(MX_GROUP, weight_only=True), quantized_parts=("experts",))


def _nvfp4(_fields: Fields, _block: Block) -> CheckpointQuantization:
    return micro_fp4(NV_GROUP, weight_only=False)


def _modelopt(fields: Fields, block: Block) -> CheckpointQuantization:
    algorithm = str(block.get("quant_algo") or "").upper()
    if algorithm == "MIXED_PRECISION":
        return _modelopt_mixed(fields, block)
    if algorithm.startswith("FP8"):
        return fp8()
    if "NVFP4" in algorithm or (not algorithm and block.get("quant_method") == "modelopt_fp4"):
        return _nvfp4(fields, block)
    if algorithm.startswith("W4A16"):
        return integers(4, _integer(block.get("group_size")) or 128, weight_only=True, zero_points=False)
    return _compressed_tensors(fields, block)


def _modelopt_mixed(fields: Fields, block: Block) -> CheckpointQuantization:
    """Layers listed one by one; read only where all of them have the same algorithm."""
    listed = block.get("quantized_layers")
    layers = (
        {name: one for name, one in listed.items() if isinstance(one, Mapping)} if isinstance(listed, Mapping) else {}
    )
    algorithms = {str(one.get("quant_algo")) for one in layers.values()}
    if len(algorithms) != 1:
        return _unknown(fields, block)
    found = _modelopt(fields, {"quant_algo": algorithms.pop()})
    parts = tuple(part for part in LINEAR if named_fraction(fields, part, layers) > _MOSTLY)
    return replace(found, quantized_parts=parts)


def _compressed_tensors(fields: Fields, block: Block) -> CheckpointQuantization:
    """Groups of targets, each with a scheme; experts may have another one than the rest."""
    groups = block.get("config_groups")
    written = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    by_part: dict[Part, CheckpointQuantization] = {}
    for group in written:
        found = _group_scheme(group)
        for part in _targets(fields, group):
            by_part[part] = found
    if not by_part:
        return _unknown(fields, block)
    main = next(by_part[part] for part in ("attention", "feed_forward", "experts", "head") if part in by_part)
    experts = by_part.get("experts", main)
    if any(one not in (main, experts) for one in by_part.values()):
        fields.notes.append("quantization differs between parts: attention stands for all but the experts")
    differs = experts.bits_per_weight != main.bits_per_weight
    return replace(
        main,
        quantized_parts=tuple(by_part),
        expert_bits_per_weight=experts.bits_per_weight if differs else None,
    )


def _targets(fields: Fields, group: Block) -> tuple[Part, ...]:
    listed = group.get("targets")
    targets = (
        [str(one) for one in listed] if isinstance(listed, Sequence) and not isinstance(listed, str) else ["Linear"]
    )
    everything: tuple[Part, ...] = (*LINEAR, "head")
    if "Linear" in targets:
        return everything
    return tuple(part for part in everything if named_fraction(fields, part, targets) > _MOSTLY)


def _group_scheme(group: Block) -> CheckpointQuantization:
    weights = group.get("weights")
    if not isinstance(weights, Mapping):
        return scheme("other", None, weight_only=True)
    weight_only = not isinstance(group.get("input_activations"), Mapping)
    bits, size = _integer(weights.get("num_bits")), _integer(weights.get("group_size"))
    kind = weights.get("type")
    if kind == "int" and bits:
        return integers(bits, size, weight_only=weight_only, zero_points=weights.get("symmetric") is False)
    if kind == "float" and bits == 8:
        return fp8(weights.get("block_structure"), weight_only=weight_only)
    if kind == "float" and bits == 4:
        return micro_fp4(size or NV_GROUP, weight_only=weight_only)
    return scheme("other", None, weight_only=weight_only)


def _bitsandbytes(fields: Fields, block: Block) -> CheckpointQuantization:
    if block.get("load_in_4bit"):
        return normal_float4(double=block.get("bnb_4bit_use_double_quant") is True)
    return scheme("int8", 8.0, weight_only=True) if block.get("load_in_8bit") else _unknown(fields, block)


def _quark(fields: Fields, block: Block) -> CheckpointQuantization:
    whole = block.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    dtype = str(weight.get("dtype")) if isinstance(weight, Mapping) else ""
    if dtype.startswith("fp8"):
        return fp8()
    return micro_fp4(MX_GROUP, weight_only=False) if dtype == "fp4" else _unknown(fields, block)


_READERS: dict[str, Callable[[Fields, Block], CheckpointQuantization]] = {
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
