"""How the losses of a plan read, in a terminal and in the report."""

from dataclasses import dataclass

from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import LossCase


@dataclass(frozen=True, slots=True, kw_only=True)
class LossLine:
    """One loss in words."""

    lost: str
    serving: str
    verdict: str
    spare: str
    """What it costs to survive it, or that nobody asked."""
    note: str


def loss_lines(plan: Plan) -> list[LossLine]:
    """Every loss of ``plan``, in order."""
    return [_line(case) for case in plan.losses]


def places(plan: Plan) -> str:
    """``zone a 4, zone b 4 replicas, at most 4 on a node``; empty without a fleet."""
    if plan.placement is None:
        return ""
    named = [f"{count} in zone {zone}" for zone, count in plan.placement.by_zone.items() if zone]
    nodes = len(plan.placement.nodes)
    spread = "1 node" if nodes == 1 else f"{nodes} nodes"
    return f"{', '.join(named)}; {spread}" if named else spread


def _line(case: LossCase) -> LossLine:
    return LossLine(
        lost=case.lost if case.kind == "rollout" else f"{case.lost} gone",
        serving=_serving(case),
        verdict=_verdict(case),
        spare=_spare(case),
        note=case.why + (f"; takes {shown_duration(case.lasts_s)}" if case.lasts_s is not None else ""),
    )


def _serving(case: LossCase) -> str:
    if case.kept is None:
        return ""
    count = case.serving_replica_count
    return "1 serves" if count == 1 else f"{count or 'none'} serve"


def _verdict(case: LossCase) -> str:
    if case.kept is None:
        return "not examined"
    if case.kept:
        return "kept"
    worst = _worst(case)
    return f"broken{f': {worst}' if worst else ''}"


def _worst(case: LossCase) -> str:
    broken = [result for result in (*case.slo_peak, *case.slo_overall) if result.sample_count and not result.kept]
    return _said(broken[0]) if broken else ""


def _said(result: SloResult) -> str:
    name = (
        "errors" if result.name == "error_rate" else f"{result.name.split('_')[0].upper()} {result.name.split('_')[1]}"
    )
    if result.predicted is None:
        return f"{name} unknown"
    if result.unit == "s":
        return f"{name} {shown_duration(result.predicted)} of {shown_duration(result.promised)}"
    return f"{name} {result.predicted:.2%} of {result.promised:.2%}"


def _spare(case: LossCase) -> str:
    if case.kind == "rollout":
        return ""
    if not case.required:
        return "not asked for"
    if not case.spare_replica_count:
        return "no further spare"
    return f"{case.spare_replica_count} more to spare, {shown_usd(case.spare_usd_per_hour)}/h"
