"""The architecture of a model, reduced to what memory and step time need.

A model is a stack of layers. Layers with the same attention shape form one :class:`Attention`, layers with the
same feed-forward shape one :class:`FeedForward`; the two lists are independent and each covers all layers.
"""

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["full", "sliding", "chunked", "latent", "recurrent", "compressed", "none"]
"""What a layer keeps per sequence.

``full``: keys and values of every token (MHA, GQA, MQA). ``sliding`` and ``chunked``: the same, at most
``window_tokens``. ``latent``: one shared latent per token (MLA), whole on every tensor-parallel rank.
``recurrent``: a fixed state (Mamba, linear attention). ``compressed``: a latent every ``compress_ratio`` tokens.
``none``: nothing is kept (encoders)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One attention shape and how many layers have it."""

    kind: AttentionKind
    layer_count: int
    query_head_count: int
    kv_head_count: int
    head_size: int
    value_head_size: int
    """Size of one value head; equals ``head_size`` except for a few models."""
    weight_count: int
    """Parameters of the attention block of *one* layer."""
    window_tokens: int | None = None
    latent_size: int = 0
    """Elements of the shared latent per token and layer (``kv_lora_rank + qk_rope_head_dim``)."""
    index_size: int = 0
    """Sparse-attention index elements kept per token and layer."""
    index_top_k_tokens: int | None = None
    compress_ratio: int = 1
    state_bytes_per_sequence: int = 0
    """Fixed state of *one* layer for one sequence, in its own precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """One feed-forward shape and how many layers have it. ``expert_count`` 0 means dense."""

    layer_count: int
    intermediate_size: int
    """Width of the dense block, or of one expert."""
    matrix_count: int = 3
    """Matrices per block: 3 gated (gate, up, down), 2 plain."""
    expert_count: int = 0
    experts_per_token_count: int = 0
    shared_intermediate_size: int = 0
    """Width of the experts every token visits, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuantization:
    """How the published checkpoint stores its weights, where it is not plain 16 bit."""

    method: str
    """As the config says: fp8, mxfp4, nvfp4, gptq, awq, compressed-tensors, gguf..."""
    bits_per_weight: float
    group_size: int | None = None
    unquantized: tuple[str, ...] = ()
    """Modules kept in 16 bit, as written in the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """One model. ``attention`` and ``feed_forward`` each add up to ``layer_count`` layers."""

    name: str
    source: str
    model_type: str
    layer_count: int
    hidden_size: int
    vocab_size: int
    max_context_tokens: int
    tied_embeddings: bool
    attention: tuple[Attention, ...]
    feed_forward: tuple[FeedForward, ...]
    quantization: CheckpointQuantization | None = None
    encoder_only: bool = False
    """An embedding or reranking encoder: prefill only, no KV cache."""
    vision_parameter_count: int = 0
    notes: tuple[str, ...] = ()
    """Assumptions made while reading the config, for a person."""
