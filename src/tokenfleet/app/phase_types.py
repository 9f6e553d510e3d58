"""Equal replicas in a scenario, as a strict type."""

from tokenfleet.app.scenario_words import Cap, Count, EngineName, GpuName, Strict, Tokens
from tokenfleet.domain.fleet import Router
from tokenfleet.domain.replica import KvPrecision, Precision


class PhaseSpec(Strict):
    """Equal replicas behind a router; what is left out is the scenario's, or the engine's default."""

    gpu: GpuName | None = None
    """The accelerator."""
    replicas: Count | None = None
    """How many; 1 when left out."""
    tensor_parallel: Count | None = None
    """GPUs per replica; the smallest that fits when left out."""
    precision: Precision | None = None
    """Of the weights; the scenario's first for its own model, else as the checkpoint stores them."""
    kv_dtype: KvPrecision | None = None
    """Of the KV cache; ``bf16`` when left out."""
    engine: EngineName | None = None
    """Engine, or engine and version."""
    max_batched_tokens: Tokens | None = None
    """Token budget of one step."""
    max_sequence_count: Count | None = None
    """Sequences that run together in one replica."""
    router: Router | None = None
    """How requests find a replica."""
    utilization_cap: Cap | None = None
    """For ``plan`` and ``size``: share of the rate they sustain that its carrying replicas may take at the peak; left
    out, the scenario's."""
