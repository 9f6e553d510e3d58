"""How fleets, times and counts are written for a person."""

from tokenfleet import catalog
from tokenfleet.domain.replica import Deployment, ReplicaPhysics
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import Recovery


def seconds(time_s: float) -> str:
    """A duration with three digits: ``412 ms``, ``1.84 s``, ``127 s``."""
    if abs(time_s) < 1.0:
        return f"{time_s * 1e3:.3g} ms"
    return f"{time_s:.3g} s" if abs(time_s) < 1000 else f"{time_s:,.0f} s"


def not_recovered(found: Recovery) -> str:
    """Why no time can be named after which the promise holds again."""
    left = seconds(found.demand_left_s)
    if found.too_soon:
        judged = f"{seconds(found.window_s)} of arrivals are judged together"
        return f"when the promise holds again is unknown: the demand ends {left} later, and {judged}"
    return f"the promise does not hold again within the {left} of demand that follow"


def tokens(count: float) -> str:
    """``7,303 tokens``."""
    return f"{count:,.0f} tokens"


def requests(count: int) -> str:
    """``1 request``, ``7,303 requests``."""
    return "1 request" if count == 1 else f"{count:,} requests"


def replicas(count: int) -> str:
    """``1 replica``, ``5 replicas``."""
    return "1 replica" if count == 1 else f"{count:,} replicas"


def gpus(count: int) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return "1 GPU" if count == 1 else f"{count:,} GPUs"


def zones(count: int) -> str:
    """``1 zone``, ``3 zones``."""
    return "1 zone" if count == 1 else f"{count:,} zones"


def layout(deployment: Deployment) -> str:
    """``2 x h100_sxm, TP2, fp8``."""
    shape = deployment.layout
    parts = [f"{shape.gpu_count} x {deployment.gpu}"]
    if shape.tensor_parallel > 1:
        parts.append(f"TP{shape.tensor_parallel}")
    if shape.pipeline_parallel > 1:
        parts.append(f"PP{shape.pipeline_parallel}")
    if shape.attention_data_parallel > 1:
        parts.append(f"DP{shape.attention_data_parallel}")
    if shape.expert_parallel > 1:
        parts.append(f"EP{shape.expert_parallel}")
    parts.append(deployment.precision)
    if deployment.kv_precision != "bf16":
        parts.append(f"kv {deployment.kv_precision}")
    return ", ".join(parts)


def settled(deployment: Deployment) -> str:
    """The layout with the settings the search varies: ``2 x h100_sxm, TP2, fp8, 512 tokens per step``.

    Those that are not the engine's own are named.
    """
    engine = deployment.engine
    usual = catalog.engine(engine.name, gpu=catalog.gpu(deployment.gpu))
    parts = [layout(deployment), f"{engine.max_batched_tokens:,} tokens per step"]
    if engine.context_limit_tokens != usual.context_limit_tokens:
        parts.append(f"at most {engine.context_limit_tokens or 0:,} tokens a request")
    if engine.prefix_caching != usual.prefix_caching:
        parts.append(f"prefix cache {'on' if engine.prefix_caching else 'off'}")
    if engine.chunked_prefill != usual.chunked_prefill:
        parts.append("prompts in chunks" if engine.chunked_prefill else "prompts whole")
    # Slots that only follow from the step say nothing of their own.
    if engine.max_sequence_count not in {usual.max_sequence_count, engine.max_batched_tokens}:
        parts.append(f"{engine.max_sequence_count:,} sequences")
    return ", ".join(parts)


def fleet(replica: ReplicaPhysics, count: int) -> str:
    """``5 replicas of 2 x h100_sxm, TP2, fp8, 512 tokens per step``."""
    return f"{replicas(count)} of {settled(replica.deployment)}"


def broken(result: SloResult, *, at_least: bool = False) -> str:
    """``ttft_p99 is 2.31 s, promised 2 s``; ``at_least`` where the value is a lower bound."""
    found = "is at least" if at_least else "is"
    if result.name == "utilization_cap":
        return f"the peak takes more than {result.promised:.0%} of what they sustain"
    if result.predicted is None:
        return f"{result.name} has no value: the requests it falls on never finished"
    if result.unit == "s":
        return f"{result.name} {found} {seconds(result.predicted)}, promised {seconds(result.promised)}"
    if result.unit == "count":
        return f"{result.name} {found} {result.predicted:,.0f}, promised {result.promised:,.0f}"
    if result.name.startswith("done_"):
        return f"{result.name} takes {result.predicted:.0%} of its time{' at least' if at_least else ''}"
    return f"{result.name} {found} {result.predicted:.3%}, promised {result.promised:.3%}"
