"""What engines cannot do and what facts are missing, as sentences."""

from re import search

from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import Reason
from tokenfleet.domain.replica import Deployment, EngineSettings, Layout, Precision
from tokenfleet.performance.precision import number_format

_FP8_BLOCK = 128
_SMALL_FLOATS = frozenset({"fp8", "nvfp4", "mxfp4"})
_SPLIT_KINDS = frozenset({"full", "sliding", "chunked", "latent", "compressed"})


def missing_facts(model: ModelArchitecture, precision: Precision = "bf16") -> tuple[str, ...]:
    """Facts without which weights and step time of a model are unknown.

    Args:
        model: An architecture, perhaps partial.
        precision: For ``checkpoint`` the stored bits of the published weights must be known.

    Returns:
        One sentence for each missing fact; empty for a complete architecture.
    """
    missing = [f"{name} is unknown" for name in model.missing]
    layers = sum(entry.layer_count for entry in model.attention)
    if layers != model.layer_count or any(entry.weight_count <= 0 for entry in model.attention if entry.kind != "none"):
        missing.append(f"attention of {model.layer_count} layers is not fully described")
    if model.feed_forward:
        layers = sum(block.layer_count for block in model.feed_forward)
        bare = any(block.intermediate_size and not block.weight_count for block in model.feed_forward)
        if bare or layers != model.layer_count:
            missing.append(f"feed-forward blocks of {model.layer_count} layers are not fully described")
    published = model.quantization
    if precision != "checkpoint" or published is None:
        return tuple(missing)
    if published.bits_per_weight is None and published.number_format == "other":
        missing.append(f"bits per weight of the {published.method} checkpoint are unknown")
    return tuple(missing)


def unsupported(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> tuple[str, ...]:
    """Why a deployment cannot run, or why its physics is not known.

    Args:
        model: The architecture.
        gpu: The part.
        deployment: Layout, precisions, engine settings.

    Returns:
        One sentence for each reason, for a person; empty when everything is supported.
    """
    return (
        *missing_facts(model, deployment.precision),
        *_layout_problems(model, deployment.layout),
        *_expert_problems(model, deployment),
        *(f"{gpu.title}: {name} is unknown" for name in gpu.missing),
        *_weight_problems(model, gpu, deployment),
        *_link_problems(gpu, deployment.layout),
        *_speculation_problems(deployment),
        *(f"{reason.text}; {reason.relax}" for reason in short_steps(model, deployment.engine)),
    )


def _layout_problems(model: ModelArchitecture, layout: Layout) -> list[str]:
    tp = layout.tensor_parallel
    problems = []
    for entry in model.attention:
        if entry.kind not in _SPLIT_KINDS:
            continue
        if entry.query_head_count % tp:
            problems.append(f"TP{tp} does not divide {entry.query_head_count} attention heads")
        elif entry.kind in {"full", "sliding", "chunked"} and max(entry.kv_head_count, tp) % min(
            entry.kv_head_count, tp
        ):
            problems.append(f"TP{tp} neither divides {entry.kv_head_count} KV heads nor is a multiple of them")
    if layout.pipeline_parallel > model.layer_count:
        problems.append(f"PP{layout.pipeline_parallel} has more stages than the {model.layer_count} layers")
    if layout.attention_data_parallel > 1 and not any(block.expert_count for block in model.feed_forward):
        problems.append("data-parallel attention needs a model with experts; use more replicas instead")
    return list(dict.fromkeys(problems))


def _expert_problems(model: ModelArchitecture, deployment: Deployment) -> list[str]:
    layout = deployment.layout
    ranks = layout.tensor_parallel * layout.attention_data_parallel
    problems = []
    if layout.expert_parallel > 1:
        if not any(block.expert_count for block in model.feed_forward):
            problems.append("expert parallelism needs a model with experts")
        if ranks % layout.expert_parallel:
            problems.append(f"EP{layout.expert_parallel} does not divide {ranks} ranks")
    problems.extend(
        f"experts {block.intermediate_size} wide do not split over {ranks // layout.expert_parallel} ranks "
        f"in FP8 blocks of {_FP8_BLOCK}; use expert parallelism"
        for block in model.feed_forward
        if block.expert_count and _is_block_fp8(model, deployment)
        if block.intermediate_size % (_FP8_BLOCK * max(ranks // layout.expert_parallel, 1))
    )
    return problems


def _is_block_fp8(model: ModelArchitecture, deployment: Deployment) -> bool:
    published = model.quantization
    return (
        published is not None
        and number_format(model, deployment.precision) == published.number_format == "fp8"
        and published.group_size == _FP8_BLOCK
    )


def _weight_problems(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> list[str]:
    stored = number_format(model, deployment.precision)
    problems = []
    if stored == "int8" and gpu.int8_flop_per_s is None:
        problems.append(f"{gpu.title} has no known INT8 rate")
    if stored in _SMALL_FLOATS:
        if _lacks_bf16(gpu):
            problems.append(f"{gpu.title} cannot run {stored} weights: no kernels for parts without BF16")
        elif gpu.vendor.lower() != "nvidia" and stored != "mxfp4" and _native_rate(gpu, stored) is None:
            # MXFP4 unpacks to 16 bit everywhere: its reference kernels do, and gpt-oss runs on such parts.
            problems.append(f"{gpu.title} has no {stored} units")
    if deployment.kv_precision == "fp8" and _lacks_bf16(gpu):
        problems.append(f"{gpu.title} cannot keep an FP8 KV cache")
    return problems


def _link_problems(gpu: Gpu, layout: Layout) -> list[str]:
    ranks = layout.gpu_count
    problems = []
    node = max(gpu.gpus_per_node_count, link_reach(gpu))
    if ranks > node and not (has_link(gpu) and link_reach(gpu) >= gpu.gpus_per_node_count):
        problems.append(f"{ranks} gpus are more than one node of {node}, and the network of such nodes is not known")
    if ranks > 1 and gpu.link_bytes_per_s is None and gpu.pcie_bytes_per_s is None:
        problems.append(f"{gpu.title} has no known link rate, so {ranks} gpus cannot be predicted")
    return problems


def _speculation_problems(deployment: Deployment) -> list[str]:
    if deployment.engine.speculation is None or deployment.layout.pipeline_parallel == 1:
        return []
    return ["speculative decoding over pipeline stages is not known: their rounds are not one model's steps"]


def short_steps(model: ModelArchitecture, engine: EngineSettings) -> tuple[Reason, ...]:
    """VLLM does not start where a prompt that it may not cut could be longer than a step; none where it does."""
    limit = engine.context_limit_tokens or model.max_context_tokens
    if engine.chunked_prefill or not engine.name.startswith("vllm") or limit is None:
        return ()
    if engine.max_batched_tokens >= limit:
        return ()
    text = (
        f"without chunked prefill vLLM needs a step for its longest request: max_batched_tokens is "
        f"{engine.max_batched_tokens:,}, the context limit {limit:,}"
    )
    relax = "set engine.chunked_prefill: true, raise max_batched_tokens or lower engine.context_limit"
    return (Reason(kind="unsupported", text=text, relax=relax),)


def has_link(gpu: Gpu) -> bool:
    """Whether a scale-up link joins gpus of a node, whatever its rate."""
    return gpu.link_bytes_per_s is not None and not gpu.link_name.lower().startswith("none")


def crosses_nodes(gpu: Gpu, layout: Layout) -> bool:
    """Whether a replica needs more gpus than a node or rack joins."""
    return layout.gpu_count > max(gpu.gpus_per_node_count, link_reach(gpu))


def known(fact: float | None) -> float:
    """A catalog fact that :func:`unsupported` has already asked for; an unknown one never becomes a number."""
    if fact is None:
        raise OutOfRange("a fact of the gpu is unknown; ask unsupported() first")
    return fact


def link_reach(gpu: Gpu) -> int:
    """Largest number of gpus that the scale-up link joins: a bridge, a node or a rack; 1 without a link."""
    name = gpu.link_name.lower()
    if not has_link(gpu):
        return 1
    if "2 or 4" in name:
        return 4
    if "pairs" in name:
        return 2
    rack = search(r"(\d+) gpus", name)
    return int(rack[1]) if rack else gpu.gpus_per_node_count


def _lacks_bf16(gpu: Gpu) -> bool:
    """Volta and Turing: the catalog notes that their 16-bit rate is FP16."""
    return "no bf16" in gpu.note.lower()


def _native_rate(gpu: Gpu, stored: str) -> float | None:
    return gpu.fp8_flop_per_s if stored == "fp8" else gpu.fp4_flop_per_s
