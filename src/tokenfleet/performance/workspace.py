"""What an engine holds beside weights and KV cache: each term derived from what the kernels allocate."""

from math import ceil

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, EngineSettings, Layout
from tokenfleet.performance.coefficients import constant, engine_family, engine_version
from tokenfleet.performance.kv import context_limit
from tokenfleet.performance.precision import number_format

GIB = 2**30
_KIB = 2**10
_ELEMENT_BYTES = 2
_LOGIT_BYTES = 4
_SORTS_UNTIL = (0, 17)
"""vLLM samples in a kernel of its own since this version; before, it sorted all logits."""
_KEEPS_WORKSPACE_SINCE = (0, 12)
"""vLLM keeps one workspace for all expert layers since this version; before, it was freed after each."""
_FP8_BLOCK_ROWS_SINCE = (0, 11)
"""vLLM multiplies FP8 blocks of experts in kernels that pad each expert since this version."""
_FP8_BLOCK = 128
_CHUNK_TOKENS, _OLDER_CHUNK_TOKENS, _OTHER_CHUNK_TOKENS = 16 * 1024, 32 * 1024, 64 * 1024
"""Most tokens that expert kernels take at once: vLLM since 0.12, vLLM before, others."""
_LATENT_GATHER_TOKENS = 64 * 1024
"""Most cached tokens that latent attention gathers at once for a prefill."""
_SLOT_ENGINES = ("llamacpp", "llama.cpp", "ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Bytes of one rank, by what they are for."""

    runtime: int
    cuda_workspace: int
    cuda_graphs: int
    activation_peak: int
    expert_workspace: int
    encoder_reserve: int


def workspace(model: ModelArchitecture, gpu: Gpu, deployment: Deployment, *, samples: bool = True) -> Workspace:
    """Everything of one rank that is neither weight nor cache.

    A profiling step has phases that free their buffers: images, layers, sampling. The peak is the largest of them,
    so a phase adds only what it needs beyond the others; what stays (image embeddings, the workspace of experts in
    newer versions) comes on top.

    Args:
        model: A complete architecture.
        gpu: The part; FP8 blocks are padded where it has FP8 units.
        deployment: Layout, engine settings, images.
        samples: Whether the rank turns hidden states into tokens, as the last pipeline stage does.

    Returns:
        The terms, in bytes, each at least 0.
    """
    layout, engine = deployment.layout, deployment.engine
    forward = forward_bytes(model, layout, engine)
    sampling = sampler_bytes(model, layout, engine) if samples else 0
    experts = expert_workspace_bytes(model, gpu, deployment)
    peak = max(forward, sampling)
    if not _keeps_workspace(engine.name):
        experts = max(forward + experts, sampling) - peak
    tokens = encoder_tokens(model, deployment)
    embeddings = tokens * model.hidden_size * _ELEMENT_BYTES
    encoding = round(tokens * constant("encoder_token_kib") * _KIB / layout.tensor_parallel)
    return Workspace(
        runtime=round(_runtime_gib(engine.name) * GIB),
        cuda_workspace=cuda_workspace_bytes(model, engine),
        cuda_graphs=0 if is_slot_engine(engine.name) else graph_bytes(model, layout, engine),
        activation_peak=peak,
        expert_workspace=experts,
        encoder_reserve=embeddings + max(encoding - peak, 0),
    )


def is_slot_engine(engine_name: str) -> bool:
    """Whether an engine allocates every slot at its whole context, as llama.cpp and ollama do."""
    return engine_name.lower().startswith(_SLOT_ENGINES)


def _is_vllm(engine_name: str) -> bool:
    return engine_family(engine_name) in {"vllm", "vllm_v0"}


def _keeps_workspace(engine_name: str) -> bool:
    name, version = engine_version(engine_name)
    return name != "vllm" or version >= _KEEPS_WORKSPACE_SINCE


def _runtime_gib(engine_name: str) -> float:
    family = engine_family(engine_name)
    return constant("runtime_gib", family if family in {"vllm", "vllm_v0", "sglang"} else "other")


def forward_bytes(model: ModelArchitecture, layout: Layout, engine: EngineSettings) -> int:
    """Activation peak of the dense part on one rank while a full step of prefill runs through the layers.

    ``c x T x (intermediate / tp + hidden) x 2`` bytes with ``T`` tokens in the step of the rank, for the widest block
    that every token visits; ``c`` is 3 before vLLM 0.8 and 1.8 since. Exact to 5 % for three printed peaks of 20,000
    to 32,768 tokens.

    Args:
        model: The architecture.
        layout: Ranks of the replica; data-parallel ranks and the batches of a pipeline share the step.
        engine: Its step budget, that of the whole replica, and version.

    Returns:
        Bytes.
    """
    widest = max(
        (block.shared_intermediate_size if block.expert_count else block.intermediate_size)
        for block in model.feed_forward
    )
    copies = constant("forward_copies", "eager" if engine_family(engine.name) == "vllm_v0" else "compiled")
    width = widest / layout.tensor_parallel + model.hidden_size
    return round(copies * _rank_tokens(layout, engine) * width * _ELEMENT_BYTES)


def _rank_tokens(layout: Layout, engine: EngineSettings) -> int:
    shared = layout.attention_data_parallel * layout.pipeline_parallel
    tokens = ceil(engine.max_batched_tokens / shared)
    return min(tokens, int(constant("ubatch_tokens"))) if is_slot_engine(engine.name) else tokens


def sampler_bytes(model: ModelArchitecture, layout: Layout, engine: EngineSettings) -> int:
    """Peak while the last hidden states of every sequence slot become tokens.

    ``c x slots x vocabulary x 4`` bytes and the hidden states of the step: vLLM profiles with all slots in use and
    top-k and top-p set. Before 0.17 it sorts all logits (``c`` = 12), since then a kernel cuts them (3.5). llama.cpp
    keeps the logits of a micro batch. For other engines the peak is not known and counts as 0: their runtime term
    is larger.

    Args:
        model: Its vocabulary matters.
        layout: Data-parallel ranks share the slots.
        engine: Slots and version.

    Returns:
        Bytes; 0 for encoders. Source: five printed peaks of vLLM 0.7 to 0.10 and one of 2026.
    """
    if model.encoder_only or model.vocab_size is None:
        return 0
    if is_slot_engine(engine.name):
        return int(constant("ubatch_tokens")) * model.vocab_size * _LOGIT_BYTES
    if not _is_vllm(engine.name):
        return 0
    tokens = _rank_tokens(layout, engine)
    slots = min(ceil(engine.max_sequence_count / layout.attention_data_parallel), tokens)
    if engine_version(engine.name)[1] < _SORTS_UNTIL:
        rows = constant("sampler_copies", "sort") * slots
    else:
        rows = constant("sampler_copies", "kernel") * slots + constant("sampler_buffer_rows")
    hidden = 2 * tokens * model.hidden_size * _ELEMENT_BYTES
    return round(rows * model.vocab_size * _LOGIT_BYTES) + hidden


def expert_workspace_bytes(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> int:
    """Buffers that routed experts of one layer work in on one rank; 0 for dense models.

    Each of the step's tokens stands once for every expert it visits: ``rows = T x k``, longer steps in chunks of
    16,384 tokens (vLLM; 32,768 before 0.12), 65,536 in other engines. Two buffers alternate
    between the matrix products, each as wide as the wider of what it holds:
    ``rows x (max(2 x width, hidden) + max(width, hidden)) x 2`` bytes. Kernels for FP8 in blocks pad the rows of each
    expert to 128.

    Args:
        model: The architecture.
        gpu: Padded kernels need FP8 units.
        deployment: Layout (whole experts under expert parallelism), step budget, precision, version.

    Returns:
        Bytes. Source: buffer shapes of vLLM's expert kernels, which SGLang's share.
    """
    layout, engine = deployment.layout, deployment.engine
    largest = 0
    for block in model.feed_forward:
        if not block.expert_count:
            continue
        split = layout.tensor_parallel * layout.attention_data_parallel // layout.expert_parallel
        width = block.intermediate_size / max(split, 1)
        tokens = _rank_tokens(layout, engine) * layout.attention_data_parallel
        tokens = min(tokens, _expert_chunk_tokens(engine.name))
        rows = tokens * block.experts_per_token_count
        if _pads_experts(model, gpu, deployment):
            rows += ceil(block.expert_count / layout.expert_parallel) * (_FP8_BLOCK - 1)
        hidden = model.hidden_size
        largest = max(largest, round(rows * (max(2 * width, hidden) + max(width, hidden)) * _ELEMENT_BYTES))
    return largest


def _expert_chunk_tokens(engine_name: str) -> int:
    if not _is_vllm(engine_name):
        return _OTHER_CHUNK_TOKENS
    newer = engine_version(engine_name)[1] >= _KEEPS_WORKSPACE_SINCE
    return _CHUNK_TOKENS if newer else _OLDER_CHUNK_TOKENS


def _pads_experts(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> bool:
    published = model.quantization
    blocks = published is not None and published.group_size == _FP8_BLOCK
    newer = engine_version(deployment.engine.name)[1] >= _FP8_BLOCK_ROWS_SINCE
    return blocks and newer and gpu.fp8_flop_per_s is not None and number_format(model, deployment.precision) == "fp8"


def cuda_workspace_bytes(model: ModelArchitecture, engine: EngineSettings) -> int:
    """Scratch of libraries: matrix products, and the gathered context of latent attention.

    Latent attention gathers at most 65,536 cached tokens (eight times the context limit where that is less) before it
    expands them for a prefill.

    Args:
        model: Its latent layers matter.
        engine: Its context limit matters.

    Returns:
        Bytes. Sources: PyTorch's and vLLM's documented sizes.
    """
    latent = max((entry.latent_size for entry in model.attention if entry.kind == "latent"), default=0)
    gathered = min(8 * context_limit(model, engine), _LATENT_GATHER_TOKENS)
    return round(constant("cublas_gib") * GIB) + gathered * latent * _ELEMENT_BYTES


def graph_bytes(model: ModelArchitecture, layout: Layout, engine: EngineSettings) -> int:
    """CUDA graphs of one rank: a fixed amount per layer, more with experts (start-up logs, 28 to 94 layers)."""
    kind = "v0" if engine_family(engine.name) == "vllm_v0" else "dense"
    if any(block.expert_count for block in model.feed_forward):
        kind = "moe"
    layers = ceil(model.layer_count / layout.pipeline_parallel)
    return round(layers * constant("graph_gib_per_layer", kind) * GIB)


def encoder_tokens(model: ModelArchitecture, deployment: Deployment) -> int:
    """Image and video tokens that an engine reserves for before it serves.

    Args:
        model: Whether it reads images.
        deployment: The stated figure, or the step budget, which is the least that vLLM's encoder budget can be.

    Returns:
        Tokens; 0 for models without a vision tower unless stated.
    """
    stated = deployment.memory.encoder_tokens
    if stated is not None:
        return stated
    reads_images = model.vision_parameter_count > 0 and _is_vllm(deployment.engine.name)
    return _rank_tokens(deployment.layout, deployment.engine) if reads_images else 0


def worst_case_encoder_tokens(limits: dict[str, int], largest_tokens: dict[str, int]) -> int:
    """Tokens of a prompt that uses every limit with the largest items.

    Args:
        limits: Items allowed in one prompt by kind: images, videos.
        largest_tokens: Tokens of the largest item of each kind, which follows from the pixels allowed.

    Returns:
        Tokens: the limits times the largest items, added up.
    """
    return sum(count * largest_tokens[kind] for kind, count in limits.items())


def adapter_bytes(model: ModelArchitecture, deployment: Deployment) -> int:
    """LoRA adapters that stay in the memory of one rank, on every linear layer outside the experts.

    An adapter of a matrix from ``a`` to ``b`` has ``rank x (a + b)`` parameters of 2 bytes; the half on the split side
    is divided by the ranks. Engines reserve the slots at start, empty or not.

    Args:
        model: The architecture.
        deployment: Layout, count and rank of the adapters.

    Returns:
        Bytes; 0 without adapters.
    """
    facts, tp = deployment.memory, deployment.layout.tensor_parallel
    if not facts.adapter_count or not facts.adapter_rank_count:
        return 0
    hidden, sizes = model.hidden_size, 0.0
    for entry in model.attention:
        queries = entry.query_head_count * entry.head_size
        keys = 2 * entry.kv_head_count * entry.head_size
        sizes += entry.layer_count * (4 * hidden + (2 * queries + keys) / tp)
    for block in model.feed_forward:
        width = block.shared_intermediate_size if block.expert_count else block.intermediate_size
        if width:
            sizes += block.layer_count * block.matrix_count * (hidden + width / tp)
    stage = ceil(model.layer_count / deployment.layout.pipeline_parallel) / model.layer_count
    return round(facts.adapter_count * facts.adapter_rank_count * sizes * stage * _ELEMENT_BYTES)
