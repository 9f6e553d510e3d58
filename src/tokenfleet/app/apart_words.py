"""Prefill and decode apart, as a person reads it beside the fleet that does both."""

from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.domain.apart import ApartAnswer, ApartPool
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.slo import SloResult


def apart_lines(answer: ApartAnswer, chosen: Sized | None) -> list[str]:
    """What prefill and decode in pools of their own would take, at the same promise and redundancy."""
    found = answer.found
    if found is None:
        return [f"prefill and decode in pools of their own: {answer.reason}"]
    return [
        f"prefill: {_pool(found.prefill)}",
        f"decode: {_pool(found.decode)}",
        f"KV crosses {found.link} in {shown_duration(found.transfer_mean_s)} on average; "
        f"{shown_usd(found.price_usd_per_hour)}/h in all, {_against(found.price_usd_per_hour, chosen)}",
        _sure(found.slo),
    ]


def _sure(slo: tuple[SloResult, ...]) -> str:
    """Whether the promise holds with all steps at the slow end of the error band."""
    said = []
    for result in slo:
        low, high = result.predicted_low, result.predicted_high
        if result.unit == "s" and low is not None and high is not None:
            said.append(f"{result.name} {shown_duration(low)} to {shown_duration(high)}")
    late = [result.name for result in slo if result.predicted is None or result.late_at_worst]
    unsure = f"; unsure: at the slow end of the error band {' and '.join(late)} breaks" if late else "; sure"
    return f"within the error band of both pools: {', '.join(said)}{unsure}"


def _pool(pool: ApartPool) -> str:
    deployment = pool.replica.deployment
    size = deployment.layout.gpu_count
    gpus = f"{size} x {deployment.gpu}" if size > 1 else deployment.gpu
    replicas = "1 replica" if pool.replica_count == 1 else f"{pool.replica_count} replicas"
    spare = f", {pool.spare_count} of them spare" if pool.spare_count else ""
    return f"{replicas} of {gpus} ({deployment.precision}){spare}, {shown_usd(pool.price_usd_per_hour)}/h"


def _against(price_usd_per_hour: float, chosen: Sized | None) -> str:
    if chosen is None:
        return "where no fleet that does both keeps the promise"
    share = price_usd_per_hour / chosen.price_usd_per_hour - 1.0
    if abs(share) < 0.005:
        return "as much as the best fleet that does both"
    return f"{abs(share) * 100:.0f} % {'more' if share > 0 else 'less'} than the best fleet that does both"
