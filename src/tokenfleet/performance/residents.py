"""Draft models, extra prediction layers and packed weights: what lies in memory because a person put it there."""

from dataclasses import replace
from typing import Final

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import CheckpointQuantization, ModelArchitecture
from tokenfleet.domain.replica import Deployment, MemoryFacts
from tokenfleet.performance.kv import kv_bytes_per_token
from tokenfleet.performance.memory import weights_bytes

GGUF_BITS_PER_WEIGHT: Final = {
    "Q2_K": 3.364,
    "Q3_K_M": 3.86,
    "Q4_0": 4.5,
    "Q4_K_M": 4.822,
    "Q5_K_M": 5.666,
    "Q6_K": 6.563,
    "Q8_0": 8.5,
}
"""File size over parameters, which is more than the name says: some matrices keep more bits. Published sizes of a 65B
model; Q4_0 and Q8_0 from the block layout alone (32 weights and a 16-bit scale)."""


def packed(model: ModelArchitecture, name: str) -> ModelArchitecture:
    """A model with its weights in a GGUF file of a kind; serve it with precision ``checkpoint``.

    Args:
        model: Any architecture.
        name: Kind of the file: ``Q4_K_M``.

    Returns:
        The architecture with the bits that such files have over all weights, head included.

    Raises:
        BadInput: A kind whose files nobody weighed here.
    """
    bits = GGUF_BITS_PER_WEIGHT.get(name.upper())
    if bits is None:
        raise BadInput.at("precision", f"unknown GGUF kind {name!r}", f"known: {', '.join(GGUF_BITS_PER_WEIGHT)}")
    quantization = CheckpointQuantization(
        method="gguf", bits_per_weight=bits, quantized_parts=("attention", "feed_forward", "experts", "head")
    )
    return replace(model, quantization=quantization)


def prediction_layer(model: ModelArchitecture) -> ModelArchitecture:
    """One more layer like the model's last, as multi-token prediction heads are; table and head are shared.

    Args:
        model: A complete architecture.

    Returns:
        A model of one layer, without a vocabulary of its own, whose attention also holds the matrix that joins two
        hidden vectors.
    """
    last, block = model.attention[-1], model.feed_forward[-1]
    joined = last.weight_count + 2 * model.hidden_size**2
    return replace(
        model,
        name=f"{model.name} prediction layer",
        layer_count=1,
        vocab_size=0,
        vision_parameter_count=0,
        position_parameter_count=0,
        attention=(replace(last, layer_count=1, weight_count=joined),),
        feed_forward=(replace(block, layer_count=1),),
    )


def draft_facts(draft: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> MemoryFacts:
    """What a draft model, or :func:`prediction_layer`, adds to each gpu of a deployment.

    Args:
        draft: Its architecture.
        gpu: Where both run.
        deployment: Of the main model; the draft follows its layout and precisions.

    Returns:
        The deployment's facts with weights and KV of the draft.
    """
    own = replace(deployment, memory=MemoryFacts())
    return replace(
        deployment.memory,
        draft_weights_bytes=weights_bytes(draft, gpu, own),
        draft_kv_bytes_per_token=kv_bytes_per_token(draft, deployment.layout, deployment.kv_precision),
    )
