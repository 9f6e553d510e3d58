"""The terms of one step: seconds per token, per sequence, per context token. Everything else is built from these."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import Attention, ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.performance.coefficients import constant, constants, engine_family
from tokenfleet.performance.collectives import collectives
from tokenfleet.performance.kv import layer_bytes_per_token
from tokenfleet.performance.shard import WeightGroup, head_bytes, weight_groups
from tokenfleet.performance.support import known

Seconds = npt.NDArray[np.float64]

_ELEMENT_BYTES = 2
_ROPE_SIZE = 64
"""Rotary elements inside a latent: all published latent models have 64."""
_INDEX_HEADS = 64
"""Index heads of sparse attention: 64 in the first model of the kind, 32 later; the larger is charged."""
_LAUNCHES_BY_KIND = {"full": 5, "sliding": 5, "chunked": 5, "latent": 9, "compressed": 9, "recurrent": 12, "none": 0}
_LAUNCHES_DENSE, _LAUNCHES_EXPERTS, _LAUNCHES_SHARED = 3, 5, 3
_LAUNCHES_PER_UNIT = 8
_LONG_WINDOW_TOKENS = 4096
"""A prompt in windows from here on is charged by its pairs inside the window, in shorter ones by tokens."""
_LARGEST_OF_NORMALS = {1: 0.0, 2: 0.564, 4: 1.03, 8: 1.42, 16: 1.77, 32: 2.07, 64: 2.34}
"""Expected maximum of as many standard normals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Seconds by what bounds them; entries may be arrays of equal shape."""

    compute: Seconds
    bandwidth: Seconds
    communication: Seconds
    overhead: Seconds

    @property
    def total(self) -> Seconds:
        """Sum of the four."""
        return self.compute + self.bandwidth + self.communication + self.overhead

    def plus(self, other: "Split") -> "Split":
        """Both, one after the other."""
        return Split(
            compute=self.compute + other.compute,
            bandwidth=self.bandwidth + other.bandwidth,
            communication=self.communication + other.communication,
            overhead=self.overhead + other.overhead,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerContext:
    """Cost of one token of context of a decoding sequence: the larger of reading it and computing with it."""

    compute_s: float
    bandwidth_s: float

    @property
    def step_s(self) -> float:
        """Seconds per token of context."""
        return max(self.compute_s, self.bandwidth_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRead:
    """Reading routed experts of one kind of layer."""

    all_s: float
    """Seconds to read every expert that a rank holds."""
    miss_fraction: float
    """Chance that a token leaves one expert alone."""
    rank_count: int = 1
    """Expert-parallel ranks, of which the busiest decides."""
    held_count: float = 1.0
    """Experts of one layer on a rank."""

    def seconds(self, token_count: Seconds) -> Seconds:
        """Seconds to read the experts that a step touches.

        One rank touches ``h = 1 - miss**T`` of its experts when routing is even. Ranks that hold different experts draw
        theirs at random, and the step waits for the busiest: the expected maximum of as many nearly normal shares
        with spread ``sqrt(h (1 - h) / held)``, at most all.

        Args:
            token_count: Tokens in the step, at least 1; any shape.

        Returns:
            Seconds, of the same shape.
        """
        if self.miss_fraction <= 0:
            return np.full_like(token_count, self.all_s)
        touched = 1 - np.exp(token_count * np.log(self.miss_fraction))
        if self.rank_count > 1:
            above = _LARGEST_OF_NORMALS[max(known for known in _LARGEST_OF_NORMALS if known <= self.rank_count)]
            touched = np.minimum(touched + above * np.sqrt(touched * (1 - touched) / self.held_count), 1.0)
        seconds: Seconds = touched * self.all_s
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """All coefficients of one replica's step, in seconds of one gpu; tokens and sequences are the replica's."""

    token_compute_s: float
    token_activation_s: float
    token_message_s: float
    prefill_token_s: float
    """Prefill attention in short windows and sparse, linear in tokens; decoding sequences pay theirs by context."""
    weight_stream_s: float
    experts: tuple[ExpertRead, ...]
    """One entry for each kind of expert layer."""
    latency_s: float
    launch_s: float
    fixed_s: float
    sequence_overhead_s: float
    sequence_state_s: float
    context: PerContext
    window: PerContext
    window_tokens: int
    pair_s: float
    window_pair_s: float
    """Per query-key pair of prefill inside a long window."""
    eager_s: float
    request_s: float
    step_token_count: int = 1
    """Tokens that a decoding sequence computes in a step: more than one where drafts are checked."""

    def token_split(self, token_count: Seconds) -> Split:
        """Cost of the batched tokens as if all were prefill, without attention to context.

        ``T x flop / rate + weights / bandwidth + experts touched / bandwidth + collectives + launches``.

        Args:
            token_count: Tokens in the step, at least 1; any shape.

        Returns:
            Seconds, of the same shape.
        """
        reads = np.full_like(token_count, self.weight_stream_s)
        for experts in self.experts:
            reads += experts.seconds(token_count)
        return Split(
            compute=token_count * (self.token_compute_s + self.prefill_token_s),
            bandwidth=reads + token_count * self.token_activation_s,
            communication=self.latency_s + token_count * self.token_message_s,
            overhead=np.full_like(token_count, self.launch_s + self.fixed_s),
        )

    @property
    def sequence_credit_s(self) -> float:
        """Windowed prefill attention that a decoding sequence is charged with its tokens but does not do."""
        return min(self.step_token_count * self.prefill_token_s, self.sequence_overhead_s + self.sequence_state_s)


def step_terms(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> StepTerms:
    """Coefficients of a step from shapes, catalog rates and fitted constants.

    Data-parallel attention spreads tokens and sequences evenly over its ranks; routed experts see all of them.

    Args:
        model: A complete architecture.
        gpu: Dense peaks in FLOP/s, bandwidth and one-way links in bytes/s.
        deployment: Layout, precisions, engine.

    Returns:
        Terms in seconds. Valid without speculation (:func:`speculating_terms`), pipeline stages or power capping.
    """
    layout = deployment.layout
    family = engine_family(deployment.engine.name)
    gpu, overhead = _derated(gpu, family)
    groups = weight_groups(model, gpu, layout, deployment.precision)
    bandwidth = known(gpu.memory_bandwidth_bytes_per_s)
    kernels = _kernel_count(model)
    per_rank = 1 / layout.attention_data_parallel
    state = sum(entry.layer_count * entry.state_bytes_per_sequence for entry in model.attention)
    contexts = _context_terms(model, gpu, deployment)
    message_s, latency_s = collectives(model, gpu, layout, family)
    kv_rate = constant("kv_bandwidth_fraction") * bandwidth
    streams = [group for group in groups if group.streamed and group.name not in {"experts", "head"}]
    head_s = head_bytes(model, gpu, layout, deployment.precision) / (
        constant("dense_bandwidth_fraction", "bf16") * bandwidth
    )
    launch = constant("launch_factor", "blackwell") if is_blackwell(gpu) else 1.0
    transfers = constant("activation_transfers") * model.hidden_size * model.layer_count * _ELEMENT_BYTES
    return StepTerms(
        token_compute_s=_unpacking(gpu, deployment)
        * sum(_compute_s(group, gpu) * _token_share(group, layout) for group in groups),
        token_activation_s=transfers / bandwidth * per_rank,
        token_message_s=message_s,
        prefill_token_s=contexts.prefill_token_s,
        weight_stream_s=sum(_read_s(group, bandwidth) for group in streams) + head_s,
        experts=_expert_reads(model, layout, [group for group in groups if group.name == "experts"], bandwidth),
        latency_s=latency_s,
        launch_s=launch * overhead * constant("launch_s", family) * kernels / _LAUNCHES_PER_UNIT,
        fixed_s=overhead * constant("step_s", family),
        sequence_overhead_s=overhead * constant("sequence_s", family) * per_rank,
        sequence_state_s=2 * state / layout.tensor_parallel / kv_rate * per_rank,
        context=contexts.context,
        window=contexts.window,
        window_tokens=contexts.window_tokens,
        pair_s=contexts.pair_s,
        window_pair_s=contexts.window_pair_s,
        eager_s=launch * overhead * constant("eager_s") * kernels / _LAUNCHES_PER_UNIT,
        request_s=constant("request_s", family),
    )


def _expert_reads(
    model: ModelArchitecture, layout: Layout, groups: list[WeightGroup], bandwidth_bytes_per_s: float
) -> tuple[ExpertRead, ...]:
    counts = [block.expert_count for block in model.feed_forward if block.expert_count]
    ranks = layout.expert_parallel
    return tuple(
        ExpertRead(
            all_s=_read_s(group, bandwidth_bytes_per_s),
            miss_fraction=group.miss_fraction,
            rank_count=ranks,
            held_count=count / ranks,
        )
        for group, count in zip(groups, counts, strict=True)
    )


def _derated(gpu: Gpu, family: str) -> tuple[Gpu, float]:
    """A part with the rates its vendor's software reaches relative to NVIDIA's, and its overhead factor.

    Only parts with rows to say so have factors; others keep their peaks and a wide bracket.
    """
    vendor = vendor_family(gpu, family)
    if f"vendor_compute_factor.{vendor}" not in constants():
        return gpu, 1.0
    compute, bandwidth = constant("vendor_compute_factor", vendor), constant("vendor_bandwidth_factor", vendor)
    derated = replace(
        gpu,
        memory_bandwidth_bytes_per_s=_times(gpu.memory_bandwidth_bytes_per_s, bandwidth),
        bf16_flop_per_s=_times(gpu.bf16_flop_per_s, compute),
        fp8_flop_per_s=_times(gpu.fp8_flop_per_s, compute),
        int8_flop_per_s=_times(gpu.int8_flop_per_s, compute),
        fp4_flop_per_s=_times(gpu.fp4_flop_per_s, compute),
    )
    return derated, constant("vendor_overhead_factor", vendor)


def vendor_family(gpu: Gpu, family: str) -> str:
    """Vendor, line of parts, or line and engine generation: what shares a set of vendor factors.

    Args:
        gpu: The part.
        family: Engine family; software of 2024 on AMD parts has factors of its own.

    Returns:
        The second part of the names of the vendor constants.
    """
    lines = {"intel_max": "intel_max", "gaudi": "gaudi", "mi2": "amd_mi200"}
    name = gpu.name.lower()
    line = next((line for start, line in lines.items() if name.startswith(start)), gpu.vendor.lower())
    return "amd_2024" if line == "amd" and family == "vllm_v0" else line


def is_blackwell(gpu: Gpu) -> bool:
    """NVIDIA parts with FP4 units: kernels start each other, and their hosts are newer."""
    return gpu.vendor.lower() == "nvidia" and gpu.fp4_flop_per_s is not None


def _times(fact: float | None, factor: float) -> float | None:
    return None if fact is None else fact * factor


def _kernel_count(model: ModelArchitecture) -> int:
    """Kernel launches of one pass."""
    attention = sum(entry.layer_count * _LAUNCHES_BY_KIND[entry.kind] for entry in model.attention)
    blocks = 0
    for block in model.feed_forward:
        if not block.intermediate_size:
            continue
        each = _LAUNCHES_EXPERTS if block.expert_count else _LAUNCHES_DENSE
        each += _LAUNCHES_SHARED if block.shared_intermediate_size else 0
        blocks += block.layer_count * each
    return attention + blocks


def _token_share(group: WeightGroup, layout: Layout) -> float:
    """Share of the replica's tokens that a rank multiplies with a group; experts see tokens of every rank."""
    return 1.0 if group.name == "experts" else 1 / layout.attention_data_parallel


def _compute_s(group: WeightGroup, gpu: Gpu) -> float:
    """Seconds per token: two FLOP for each parameter at the rate of the precision really multiplied."""
    rates = {
        "bf16": gpu.bf16_flop_per_s,
        "fp8": gpu.fp8_flop_per_s,
        "int8": gpu.int8_flop_per_s,
        "fp4": gpu.fp4_flop_per_s,
    }
    rate = known(rates[group.storage.multiplied])
    if group.name == "experts":
        return 2 * group.used_count / (constant("expert_compute_fraction", group.storage.multiplied) * rate)
    return 2 * group.used_count / (constant("dense_compute_fraction", group.storage.multiplied) * rate)


def _read_s(group: WeightGroup, bandwidth_bytes_per_s: float) -> float:
    name = "expert_bandwidth_fraction" if group.name == "experts" else "dense_bandwidth_fraction"
    return group.stored_bytes / (constant(name, group.storage.stored) * bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class _ContextTerms:
    context: PerContext
    window: PerContext
    window_tokens: int
    pair_s: float
    window_pair_s: float
    prefill_token_s: float


def _context_terms(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> _ContextTerms:
    """Attention to context, summed over layer kinds.

    A step has one window: the longest of the model. Sparse attention reads ``top_k`` tokens, which acts like a
    window, and its index keys over the whole context.
    """
    window_tokens = max((_reach(entry) for entry in model.attention), default=0)
    full_bytes = full_flop = window_bytes = window_flop = pair_flop = inside_flop = linear_flop = 0.0
    for entry in model.attention:
        # Where an FP8 cache is unpacked, that costs in a step what the smaller read saves.
        read_as = "bf16" if _unpacking(gpu, deployment) > 1 else deployment.kv_precision
        size = entry.layer_count * float(layer_bytes_per_token(entry, deployment.layout, read_as))
        size *= _reads_per_key(entry, gpu, deployment)
        decode, prefill = _attention_flop(entry, deployment.layout)
        reach = _reach(entry)
        if entry.index_size and reach:
            index = entry.layer_count * (entry.index_size + 4) / entry.compress_ratio
            flop = entry.layer_count * 2 * _INDEX_HEADS * entry.index_size / entry.compress_ratio
            full_bytes, full_flop, pair_flop = full_bytes + index, full_flop + flop, pair_flop + flop
            size -= index
        if reach:
            window_bytes, window_flop = window_bytes + size, window_flop + decode
        else:
            full_bytes, full_flop = full_bytes + size, full_flop + decode
        if not reach:
            pair_flop += prefill
        elif reach < _LONG_WINDOW_TOKENS:
            linear_flop += prefill * reach
        else:
            inside_flop += prefill
    share = 1 / deployment.layout.attention_data_parallel
    rate = constant("attention_compute_fraction") * known(gpu.bf16_flop_per_s)
    read = constant("kv_bandwidth_fraction") * known(gpu.memory_bandwidth_bytes_per_s)
    return _ContextTerms(
        PerContext(compute_s=full_flop / rate * share, bandwidth_s=full_bytes / read * share),
        PerContext(compute_s=window_flop / rate * share, bandwidth_s=window_bytes / read * share),
        window_tokens,
        pair_flop / rate * share * _unpacking(gpu, deployment),
        inside_flop / rate * share * _unpacking(gpu, deployment),
        linear_flop / rate * share,
    )


def _unpacking(gpu: Gpu, deployment: Deployment) -> float:
    """How much longer prompts take that fill an FP8 cache on a part without FP8 units, which packs and unpacks it."""
    packed = deployment.kv_precision == "fp8" and gpu.fp8_flop_per_s is None
    return constant("unpacked_cache_factor") if packed else 1.0


def _reads_per_key(entry: Attention, gpu: Gpu, deployment: Deployment) -> float:
    """How often decode reads one key: once for each query head where the attention kernel knows no groups.

    So it was in vLLM before 0.8 on AMD and Intel parts: fixed batches show it in the ratio of models with and without
    groups (Argonne's benchmark, MI300X).
    """
    family = engine_family(deployment.engine.name)
    if family != "vllm_v0" or gpu.vendor.lower() == "nvidia" or entry.kind not in {"full", "sliding", "chunked"}:
        return 1.0
    return entry.query_head_count / max(entry.kv_head_count, 1)


def _reach(entry: Attention) -> int:
    """Context that one token attends to at most; 0 without bound."""
    if entry.kind in {"sliding", "chunked"}:
        return entry.window_tokens or 0
    if entry.kind in {"latent", "full"}:
        return entry.index_top_k_tokens or 0
    return 0


def _attention_flop(entry: Attention, layout: Layout) -> tuple[float, float]:
    """FLOP of all layers of a kind per token of context in decode, and per query-key pair in prefill, on one rank.

    Two FLOP for each element of scores and values. Decode on a latent works on the latent itself, prefill on
    expanded keys and values.
    """
    heads = entry.layer_count * entry.query_head_count / layout.tensor_parallel
    if entry.kind in {"none", "recurrent"}:
        return (0.0, 2 * heads * (entry.head_size + entry.value_head_size)) if entry.kind == "none" else (0.0, 0.0)
    expanded = 2 * heads * (entry.head_size + entry.value_head_size) / entry.compress_ratio
    if entry.kind == "latent":
        return 2 * heads * (2 * entry.latent_size - _ROPE_SIZE), expanded
    return expanded, expanded
