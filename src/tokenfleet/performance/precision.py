"""How weights are stored and in which precision they multiply."""

from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import CheckpointQuantization, ModelArchitecture, Part
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Precision

PLAIN_BITS = 16.0
"""Bits of an unquantised weight."""

_STORED_BITS = {
    "fp8": 8 + 32 / 128**2,
    "int8": 8 + 16 / 4096,
    "int4": 4 + 32 / 128,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
}
"""Stored bits per weight with scales: FP8 and INT8 one scale per block or row, INT4 a scale and zero per 128,
MXFP4 an 8-bit scale per 32, NVFP4 an 8-bit scale per 16."""

_HALF_BYTE_BITS = 5
"""Between the 4-bit formats, scales included, and the 8-bit ones."""

_STORED_AS = {"fp8": "fp8", "int8": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "int4": "int4", "other": "int4"}
"""Storage class of a number format in the bandwidth constants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How one part of a model lies in memory and multiplies."""

    bits: float
    """Stored bits per weight, scales included."""
    stored: str
    """Storage class of the bandwidth constants: bf16, fp8, int4 or fp4."""
    multiplied: str
    """Precision of the multiplication: bf16, fp8, int8 or fp4."""


PLAIN = Storage(bits=PLAIN_BITS, stored="bf16", multiplied="bf16")


def number_format(model: ModelArchitecture, precision: Precision) -> str:
    """Number format of the quantised weights: bf16 when there are none, else fp8, int8, int4, nvfp4, mxfp4, other."""
    if precision == "checkpoint":
        return "bf16" if model.quantization is None else model.quantization.number_format
    return "nvfp4" if precision == "fp4" else precision


def part_storage(model: ModelArchitecture, gpu: Gpu, precision: Precision, part: Part) -> Storage:
    """Storage and arithmetic of one part of a model in a precision on a gpu.

    Embeddings, the output head, routers and norms stay at 16 bit unless the checkpoint says otherwise. A checkpoint
    published in the wanted format decides which parts are quantised. Without one, every linear layer is, except
    that MXFP4 quantises experts only where a model has them, and NVFP4 leaves latent attention at 16 bit, as the
    published checkpoints do. Weights multiply in their own precision where the gpu has such units and activations
    are quantised too, otherwise in 16 bit after unpacking.

    Args:
        model: Its ``quantization`` matters for ``checkpoint`` and where it has the wanted format.
        gpu: Decides the precision of the multiplication.
        precision: As a deployment states it.
        part: Attention, dense and shared feed-forward, routed experts, head.

    Returns:
        The storage. Source: published checkpoint layouts.
    """
    form = number_format(model, precision)
    published = model.quantization
    if form == "bf16":
        return PLAIN
    if published is None or published.number_format != form:
        if part not in _default_parts(model, form):
            return PLAIN
        return Storage(bits=_STORED_BITS[form], stored=_STORED_AS[form], multiplied=_multiplied(gpu, form))
    if part not in published.quantized_parts or _left_alone(model, published, part):
        return PLAIN
    return _published_storage(gpu, published, form, part)


def _left_alone(model: ModelArchitecture, published: CheckpointQuantization, part: Part) -> bool:
    """NVFP4 releases of latent-attention models keep attention in 16 bit, also where only the name says NVFP4."""
    bare = published.number_format == "nvfp4" and not published.unquantized
    return bare and part not in _default_parts(model, "nvfp4")


def _published_storage(gpu: Gpu, published: CheckpointQuantization, form: str, part: Part) -> Storage:
    bits = stored_bits(published)
    if part == "experts" and published.expert_bits_per_weight is not None:
        form = "mxfp4" if published.expert_bits_per_weight < _HALF_BYTE_BITS < bits else form
        bits = published.expert_bits_per_weight
    # MXFP4 is weight-only where there are no FP4 units; where there are, engines quantise activations on the way.
    weight_only = published.weight_only and form != "mxfp4"
    return Storage(bits=bits, stored=_STORED_AS[form], multiplied="bf16" if weight_only else _multiplied(gpu, form))


def stored_bits(published: CheckpointQuantization) -> float:
    """Bits of a quantised weight as the checkpoint states them, or as its number format has them."""
    if published.bits_per_weight is not None:
        return published.bits_per_weight
    if published.number_format not in _STORED_BITS:
        raise OutOfRange(f"bits per weight of a {published.method} checkpoint are unknown; ask missing_facts() first")
    return _STORED_BITS[published.number_format]


def _default_parts(model: ModelArchitecture, form: str) -> tuple[Part, ...]:
    if form == "mxfp4" and any(block.expert_count for block in model.feed_forward):
        return ("experts",)
    if form == "nvfp4" and any(attention.kind == "latent" for attention in model.attention):
        return ("feed_forward", "experts")
    return ("attention", "feed_forward", "experts")


def _multiplied(gpu: Gpu, form: str) -> str:
    """INT4 and unknown formats always multiply in 16 bit; others where the gpu lacks units of their own."""
    if form == "fp8" and gpu.fp8_flop_per_s is not None:
        return "fp8"
    if form == "int8" and gpu.int8_flop_per_s is not None:
        return "int8"
    if form in {"nvfp4", "mxfp4"} and gpu.fp4_flop_per_s is not None:
        return "fp4"
    return "bf16"


def arithmetic_notes(model: ModelArchitecture, gpu: Gpu, precision: Precision) -> tuple[str, ...]:
    """Where quantised weights multiply in 16 bit, which saves memory and reading but no arithmetic."""
    form = number_format(model, precision)
    if form in {"bf16", "int4", "other"} or part_storage(model, gpu, precision, "feed_forward").multiplied != "bf16":
        return ()
    units = {"fp8": gpu.fp8_flop_per_s, "int8": gpu.int8_flop_per_s}.get(form, gpu.fp4_flop_per_s)
    if units is not None:
        return ()
    return (f"{gpu.title} has no {form} units: weights are read in {form} and multiplied in 16 bit",)
