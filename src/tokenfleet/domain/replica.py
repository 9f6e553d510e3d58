"""What one replica is: layout, precision, engine settings; and what physics says of it."""

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass

Precision = Literal["bf16", "fp8", "int8", "fp4", "int4", "mxfp4", "checkpoint"]
"""Precision of the weights. ``checkpoint``: as the published checkpoint stores them."""
KvPrecision = Literal["bf16", "fp8"]
Scheduling = Literal["fcfs", "priority"]
Preemption = Literal["recompute", "swap"]
FrontEnd = Literal["parallel", "serial"]
_BOUNDLESS_COUNT = 2**30
PREDICTION_LAYER = "mtp"
"""Names, where a draft model is asked for, one prediction layer of the model's own kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one replica spreads over gpus."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    attention_data_parallel: int = 1
    """Ranks that each hold whole attention layers and their own KV pool; experts are shared."""
    expert_parallel: int = 1

    @property
    def gpu_count(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel * self.attention_data_parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: a drafter proposes tokens, the model checks all of them in one step and keeps a beginning.

    Each step yields one token of the model's own behind what it keeps.
    """

    draft_token_count: int
    """Proposed for each decoding sequence in each step; 0: the engine stands ready to speculate and never does."""
    acceptance_fraction: float
    """Chance that a drafted token is kept, where all before it were."""
    drafter: str | None = None
    """Draft model, or :data:`PREDICTION_LAYER`; ``None``: text looked up, which costs the gpu nothing."""

    @property
    def mean_step_tokens(self) -> float:
        """Tokens that a sequence gets in a step, in the mean: 1 + a + a^2 + ... + a^k."""
        return sum(self.acceptance_fraction**kept for kept in range(self.draft_token_count + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """A rule set of a serving engine, by version, with the settings that shape memory and batching."""

    name: str
    """Engine and version: ``vllm-0.32``."""
    max_batched_tokens: int
    max_sequence_count: int
    block_tokens: int
    memory_utilization_fraction: float
    prefix_caching: bool
    chunked_prefill: bool
    full_prompt_gate: bool
    """A prompt is admitted only when the whole of it fits into free KV blocks."""
    async_scheduling: bool
    watermark_fraction: float = 0.0
    context_limit_tokens: int | None = None
    long_prefill_tokens: int | None = None
    """Tokens that one prompt gets of a step at most, so that shorter ones pass it; ``None``: as many as there are."""
    scheduling: Scheduling = "fcfs"
    """``priority``: waiting requests by their priority, then by arrival; who runs is preempted the other way round."""
    front_end: FrontEnd = "parallel"
    """``serial``: one thread takes the front end work of all requests of a replica, one after another."""
    preemption: Preemption = "recompute"
    """``swap``: the KV of a preempted decode waits in host memory while ``swap_bytes`` have room, as in vLLM V0."""
    swap_bytes: int = 0
    """Host memory for each gpu."""
    prefill_decode_interval_count: int = 0
    """Rounds of decode between two rounds of prefill, where anybody decodes (SGLang)."""
    receive_interval_count: int = 1
    """Rounds of decode between two looks for new requests (SGLang's ``scheduler_recv_interval``)."""
    speculation: Speculation | None = None
    """``None``: each step yields one token for each decoding sequence."""

    @property
    def step_token_count(self) -> int:
        """Tokens that a decoding sequence computes in a step: its next one, and those drafted behind it."""
        return 1 if self.speculation is None else 1 + self.speculation.draft_token_count

    @property
    def mean_step_tokens(self) -> float:
        """Tokens that a decoding sequence gets in a step, in the mean."""
        return 1.0 if self.speculation is None else self.speculation.mean_step_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What else a person knows of the memory of one gpu. The defaults stand for nothing beside the model."""

    checkpoint_bytes: int | None = None
    """Weights of the whole model as its files hold them; ``None``: reckoned from the architecture."""
    encoder_tokens: int | None = None
    """Tokens of images and video that the engine reserves for at start: the limits of a prompt times the largest
    item, added up. ``None``: one step's budget where the model reads images, else 0."""
    adapter_count: int = 0
    """LoRA adapters that stay in gpu memory."""
    adapter_rank_count: int = 0
    draft_weights_bytes: int = 0
    """Weights of a draft model or of extra prediction layers, per gpu."""
    draft_kv_bytes_per_token: int = 0
    """What they add to the KV cache, per gpu."""
    neighbour_bytes: int = 0
    """Held by other processes on the same gpu before this engine starts."""
    safety_bytes: int = 0
    """Left free on purpose, inside the engine's share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica, by name: everything a person would type to start it."""

    model: str
    gpu: str
    layout: Layout
    precision: Precision
    kv_precision: KvPrecision
    engine: EngineSettings
    memory: MemoryFacts = MemoryFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class KvWindow:
    """Layers whose cache stops growing: what one sequence holds in them on one gpu, at most."""

    window_tokens: int
    """Context that the layers look back on."""
    held_tokens: int
    """Largest footprint of a sequence in tokens: the window and one step of prefill."""
    bytes_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Where the memory of the fullest gpu (rank) of a replica goes. Bytes are per gpu, tokens per replica."""

    fits: bool
    terms_bytes: Mapping[str, int]
    """Named terms in the order a person reads them; ``kv_cache`` is what is left for KV, and all add up to
    ``total_bytes`` when the replica fits."""
    total_bytes: int
    weights_bytes: int
    kv_bytes_per_token: int
    """Growth per token of context on one gpu, in layers whose cache grows."""
    kv_fixed_bytes_per_sequence: int
    """Windows and recurrent state of one sequence on one gpu, once its context is past every window; whole blocks,
    as an engine reserves them at admission."""
    kv_capacity_bytes: int
    kv_capacity_tokens: int
    """Tokens of context the whole replica holds if sequences cost growth only (the engine's own figure)."""
    too_close_to_call: bool
    """The verdict hangs on less than the uncertainty of the runtime terms."""
    reasons: tuple[str, ...]
    """Why it does not fit, or what to watch if it does."""
    kv_block_tokens: int = 16
    """Tokens per KV block; hybrid models take blocks as large as one recurrent state."""
    kv_state_bytes_per_sequence: int = 0
    """The part of ``kv_fixed_bytes_per_sequence`` that is recurrent state."""
    kv_windows: tuple[KvWindow, ...] = ()
    """The part of ``kv_fixed_bytes_per_sequence`` that is windows, so that short contexts can be charged less."""
    kv_pool_count: int = 1
    """Separate KV pools of the replica: one for each data-parallel attention rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """Duration of one engine step, in integer picoseconds, so that jumping over steps equals stepping.

    A step computes ``token_count`` tokens: one for each decoding sequence (with speculation, those drafted as well)
    and ``q`` for each prefill chunk. With
    ``sequence_count`` decoding sequences whose contexts add up to ``context_tokens`` (``window_context_tokens``
    after cutting each at ``window_tokens``), and ``pair_count`` query-key pairs of prefill
    (``q * start + q * (q + 1) / 2`` summed over chunks; ``window_pair_count`` with keys among the last
    ``window_tokens``)::

        base = token_ps[token_count] + sequence_ps * sequence_count + context_ps * context_tokens
             + window_ps * window_context_tokens + pair_ps * pair_count + window_pair_ps * window_pair_count
             + draft_ps[sequence_count]
        step = base                                         without prefill (replayed graph)
        step = (base**4 + eager_ps**4) ** (1/4), rounded    with prefill (launches bound a short step from below)

    The smooth maximum is computed in float64 with square roots only, which IEEE 754 rounds exactly, so
    compiled and plain code agree bit for bit.
    """

    token_ps: npt.NDArray[np.int64] = field(repr=False)
    """Index 0 .. max_batched_tokens (at least max_sequence_count): matrices, experts, collectives, launches."""
    sequence_ps: int
    context_ps: int
    window_ps: int
    window_tokens: int
    """Size of the attention window in tokens; 0 when no layer has one."""
    pair_ps: int
    eager_ps: int
    request_ps: int
    """Front end work before a request's first token, beside the gpu: tokenizing, HTTP, detokenizing."""
    window_pair_ps: int = 0
    """In layers with a long window. Short ones are part of ``token_ps``."""
    draft_ps: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    """By decoding sequences: what the drafter takes for all of them, where ``token_ps`` counts each token of the step
    as one of a prompt that it has read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """What one step's time is made of; the four add up to ``step_s``."""

    step_s: float
    compute_s: float
    bandwidth_s: float
    communication_s: float
    overhead_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """How wrong a predicted time may be: multiply and divide by the factor for the 90 % interval."""

    step_time_factor: float
    evidence: str
    """Where the factor comes from, for a person."""
    first_token_factor: float = 1.0
    """The same of a whole time to first token as measured below saturation, where it is wider: front ends differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPhysics:
    """All that the simulator needs to know of one replica."""

    deployment: Deployment
    memory: MemoryBudget
    step_time: StepTimeModel
    band: ErrorBand
    kv_block_count: int
    kv_block_tokens: int
    kv_fixed_block_count: int
    """Blocks each running sequence holds besides those that its context fills: recurrent state."""
    kv_growth_block_count: int = 1
    """Blocks that ``kv_block_tokens`` of context take in layers that keep all of it."""
    kv_window_block_count: int = 0
    """The same in layers with a window, which give back what is behind it; 0: none has one."""
    kv_window_tokens: int = 0
    """Tokens that these layers look back on, the one being computed included."""
    swap_block_count: int = 0
    """Blocks of preempted sequences that host memory takes."""
    swap_block_ps: int = 0
    """Time in which the gpus move one of them there or back, each its own part."""
    swap_block_bytes: int = 0
    """That part; 0 where nothing is swapped."""
    model_context_tokens: int | None = None
    """Longest sequence that the model was made for; ``None``: unknown."""

    @property
    def kv_window_stretch_count(self) -> int:
        """Times ``kv_block_tokens`` of context that a sequence holds in layers with a window at most.

        The window before the longest chunk, that chunk and, with async scheduling, the one in flight before it; one
        more because a window rarely starts where a block does. Source: what vLLM 0.32 asks for at admission.
        """
        engine = self.deployment.engine
        in_flight = engine.max_batched_tokens * (2 if engine.async_scheduling and engine.speculation is None else 1)
        return math.ceil((self.kv_window_tokens - 1 + in_flight) / self.kv_block_tokens) + 1

    def sequence_blocks(self, context_tokens: float) -> int:
        """Blocks that a decoding sequence of that context holds."""
        stretches = math.ceil(context_tokens / self.kv_block_tokens)
        inside = min(stretches, math.ceil((self.kv_window_tokens - 1) / self.kv_block_tokens) + 1)
        grown = stretches * self.kv_growth_block_count + inside * self.kv_window_block_count
        return grown + self.kv_fixed_block_count

    @property
    def kv_pool_tokens(self) -> int:
        """Tokens of context that the pool holds where windows and state cost nothing: the engine's own figure."""
        return self.kv_block_count // (self.kv_growth_block_count or self.kv_window_block_count) * self.kv_block_tokens

    @property
    def longest_sequence_tokens(self) -> int:
        """Tokens of the longest sequence that the pool holds, within the context limit."""
        growth, windowed = self.kv_growth_block_count, self.kv_window_block_count
        blocks = max(0, self.kv_block_count - self.kv_fixed_block_count)
        stretches = blocks // (growth + windowed)
        most = self.kv_window_stretch_count
        if windowed and stretches > most:
            stretches = (blocks - windowed * most) // growth if growth else _BOUNDLESS_COUNT
        held = stretches * self.kv_block_tokens
        return min(held, self.context_limit_tokens or held)

    @property
    def context_limit_tokens(self) -> int | None:
        """Longest request that the engine accepts: its setting, else the model's own limit, as engines take it."""
        return self.deployment.engine.context_limit_tokens or self.model_context_tokens
