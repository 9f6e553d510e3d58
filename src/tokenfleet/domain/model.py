"""The architecture of a model, reduced to what memory and step time need.

A model is a stack of layers. Layers with the same attention shape form one :class:`Attention`, layers with the
same feed-forward shape one :class:`FeedForward`; the two lists are independent and each covers all layers, those
without attention (``none`` with no weights) and without feed-forward (width 0) included.
"""

from typing import Literal

from tokenfleet.domain.records import dataclass

AttentionKind = Literal["full", "sliding", "chunked", "latent", "recurrent", "compressed", "none"]
"""What a layer keeps per sequence.

``full``: keys and values of every token (MHA, GQA, MQA). ``sliding`` and ``chunked``: the same, at most
``window_tokens``. ``latent``: one shared latent per token (MLA), whole on every tensor-parallel rank.
``recurrent``: a fixed state (Mamba, linear attention). ``compressed``: a latent every ``compress_ratio`` tokens,
and one for each of the last ``window_tokens``. ``none``: nothing is kept (encoders, layers without attention)."""

Part = Literal["attention", "feed_forward", "experts", "head"]
"""Groups of matrices that a checkpoint quantizes or leaves alone. ``feed_forward``: dense blocks and shared experts;
``experts``: those a router chooses; ``head``: the output matrix. Embeddings and routers stay in 16 bit."""

NumberFormat = Literal["fp8", "int8", "int4", "nvfp4", "mxfp4", "other"]


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
    """Parameters of the attention block of *one* layer; biases and norms left out."""
    window_tokens: int | None = None
    latent_size: int = 0
    """Elements of the shared latent per token and layer (``kv_lora_rank + qk_rope_head_dim``), per compressed
    entry in ``compressed`` layers."""
    index_size: int = 0
    """Sparse-attention index elements kept per token and layer."""
    index_top_k_tokens: int | None = None
    """Context tokens a decoding token really attends to, at most, in layers with sparse attention."""
    compress_ratio: int = 1
    state_bytes_per_sequence: int = 0
    """Fixed state of *one* layer for one sequence, in its own precision."""
    shared_key_value: bool = False
    """Keys serve as values, so one of the two is kept."""

    @property
    def kv_elements_per_token(self) -> float:
        """Elements *one* layer keeps for one token, index left out; in windowed layers only up to the window."""
        if self.kind in ("latent", "compressed"):
            return self.latent_size / self.compress_ratio
        if self.kind in ("recurrent", "none"):
            return 0.0
        return float(self.kv_head_count * (self.head_size + (0 if self.shared_key_value else self.value_head_size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """One feed-forward shape and how many layers have it. ``expert_count`` 0 means dense."""

    layer_count: int
    intermediate_size: int
    """Width of the dense block, or of one expert; 0 in layers without feed-forward."""
    matrix_count: int = 3
    """Matrices per block: 3 gated (gate, up, down), 2 plain."""
    expert_count: int = 0
    experts_per_token_count: int = 0
    shared_intermediate_size: int = 0
    """Width of the experts every token visits, added up."""
    every_token_weight_count: int = 0
    """Parameters of *one* layer that every token visits: dense block, shared experts, router, projections."""
    expert_weight_count: int = 0
    """Parameters of *one* routed expert."""

    @property
    def weight_count(self) -> int:
        """Parameters of *one* layer."""
        return self.every_token_weight_count + self.expert_count * self.expert_weight_count

    @property
    def active_weight_count(self) -> int:
        """Parameters of *one* layer that one token visits."""
        return self.every_token_weight_count + self.experts_per_token_count * self.expert_weight_count


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointQuantization:
    """How the published checkpoint stores its weights, where it is not plain 16 bit."""

    method: str
    """As the config says: fp8, mxfp4, nvfp4, gptq, awq, compressed-tensors, gguf..."""
    bits_per_weight: float | None
    """Stored bits of one quantized weight, scales included; ``None`` where the config does not say."""
    group_size: int | None = None
    unquantized: tuple[str, ...] = ()
    """Modules kept in 16 bit, as written in the config."""
    number_format: NumberFormat = "other"
    weight_only: bool = True
    """Weights are unpacked and multiplied in 16 bit; else activations are quantized too."""
    quantized_parts: tuple[Part, ...] = ("attention", "feed_forward", "experts")
    """Parts stored in ``bits_per_weight``; all others in 16 bit."""
    expert_bits_per_weight: float | None = None
    """Stored bits of routed experts where they differ from the other quantized parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchitecture:
    """One model. ``attention`` and ``feed_forward`` each add up to ``layer_count`` layers."""

    name: str
    source: str
    model_type: str
    layer_count: int
    hidden_size: int
    vocab_size: int | None
    """``None`` where the source does not give it; then the weights are unknown too."""
    max_context_tokens: int | None
    tied_embeddings: bool
    attention: tuple[Attention, ...]
    feed_forward: tuple[FeedForward, ...]
    """Empty where the source does not give the widths; then the weights are unknown too."""
    quantization: CheckpointQuantization | None = None
    encoder_only: bool = False
    """An embedding or reranking encoder: prefill only, no KV cache."""
    vision_parameter_count: int = 0
    """Estimate for the tower that reads images, beside ``parameter_count``."""
    position_parameter_count: int = 0
    """Learned position embeddings."""
    notes: tuple[str, ...] = ()
    """Assumptions made while reading the config, for a person."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that memory and step time need and the source does not give."""
        absent = (("vocab_size", self.vocab_size is None), ("intermediate_size", not self.feed_forward))
        return tuple(name for name, gone in absent if gone)

    @property
    def embedding_parameter_count(self) -> int | None:
        """Parameters of the input embedding, learned positions included."""
        if self.vocab_size is None:
            return None
        return self.vocab_size * self.hidden_size + self.position_parameter_count

    @property
    def head_parameter_count(self) -> int | None:
        """Parameters of the output matrix, also where it is the embedding used twice; 0 in encoders."""
        if self.vocab_size is None:
            return None
        return 0 if self.encoder_only else self.vocab_size * self.hidden_size

    @property
    def parameter_count(self) -> int | None:
        """Stored parameters of the language model; ``None`` when a fact is missing. Biases and norms left out."""
        return self._parameters(active=False)

    @property
    def active_parameter_count(self) -> int | None:
        """Parameters one token visits, embedding and output matrix included; ``None`` when a fact is missing."""
        return self._parameters(active=True)

    def _parameters(self, *, active: bool) -> int | None:
        embedding, head = self.embedding_parameter_count, self.head_parameter_count
        if embedding is None or head is None or self.missing:
            return None
        layers = sum(shape.layer_count * shape.weight_count for shape in self.attention)
        for block in self.feed_forward:
            layers += block.layer_count * (block.active_weight_count if active else block.weight_count)
        return layers + embedding + (0 if self.tied_embeddings else head)

    @property
    def kv_elements_per_token(self) -> float:
        """Growth of the KV cache per token of context over all layers, index keys left out, in elements."""
        return sum(
            shape.layer_count * shape.kv_elements_per_token
            for shape in self.attention
            if shape.kind in ("full", "latent", "compressed")
        )

    @property
    def index_elements_per_token(self) -> int:
        """Sparse-attention index elements per token of context over all layers."""
        return sum(shape.layer_count * shape.index_size for shape in self.attention)

    @property
    def window_elements_per_sequence(self) -> int:
        """Elements that windowed layers hold for one sequence whose context is past every window."""
        total = 0.0
        for shape in self.attention:
            if shape.window_tokens is not None:
                kept = shape.latent_size if shape.kind == "compressed" else shape.kv_elements_per_token
                total += shape.layer_count * kept * shape.window_tokens
        return round(total)

    @property
    def state_bytes_per_sequence(self) -> int:
        """Recurrent state of one sequence over all layers."""
        return sum(shape.layer_count * shape.state_bytes_per_sequence for shape in self.attention)
