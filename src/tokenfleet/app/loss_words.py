"""How the losses of a plan read, in a terminal and in the report."""

from collections.abc import Iterator
from typing import Final

from tokenfleet.app.columns import columns
from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.recovery_words import holds_again, later_windows
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import LossCase, Moment

_PLANNED: Final = ("rollout", "maintenance")
"""What takes replicas away after they have finished what they hold."""


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


def told_losses(plan: Plan) -> list[str]:
    """Every loss as a terminal shows it, pool by pool where there are several."""
    if plan.chosen is not None:
        return [f"{places(plan)}; the worst of each, at the peak:", *_in_columns(plan)]
    lines = ["the worst of each, at the peak:"]
    for pool in plan.pools:
        hosts = [sized.beside for sized in pool.plan.fleets if sized.beside is not None]
        if hosts:
            lines.append(f"{pool.name}: goes with {hosts[0]}, on whose GPUs it stands")
        else:
            lines += [f"{pool.name}: {places(pool.plan)}", *_in_columns(pool.plan)]
    return lines


def _in_columns(plan: Plan) -> Iterator[str]:
    """Each loss in columns, and below it what happens in its moment."""
    lines = loss_lines(plan)
    rows = columns([(line.lost, line.serving, line.verdict, line.spare) for line in lines])
    for line, row in zip(lines, rows, strict=True):
        yield row
        if line.note:
            yield f"  {line.note}"


def survived(plan: Plan) -> str:
    """``It keeps the promise without the worst node too, and without the worst zone.``; empty where nobody asked."""
    asked = [case for case in plan.losses if case.required and case.kind != "replica"]
    # Of several pools a kind of loss is survived where every one of them survives it.
    broken = {case.kind for case in asked if not case.kept}
    named = dict.fromkeys(
        f"the worst {case.kind}" if case.count == 1 else f"the {case.count} worst {case.kind}s"
        for case in asked
        if case.kind not in broken
    )
    return f"It keeps the promise without {' and without '.join(named)} too." if named else ""


def places(plan: Plan) -> str:
    """``4 replicas in zone a, 4 in zone b, on 2 nodes``; empty without a fleet."""
    if plan.pools:
        return "; ".join(f"{pool.name}: {places(pool.plan)}" for pool in plan.pools)
    if plan.placement is None:
        return ""
    named = [f"{count} in zone {zone}" for zone, count in plan.placement.by_zone.items() if zone]
    nodes = len(plan.placement.nodes)
    spread = "on 1 node" if nodes == 1 else f"on {nodes} nodes"
    return f"replicas stand {', '.join([*named, spread])}"


def _line(case: LossCase) -> LossLine:
    pool = f"{case.pool}: " if case.pool else ""
    return LossLine(
        lost=f"{pool}{case.lost}" if case.kind in _PLANNED else f"{pool}{case.lost} gone",
        serving=_serving(case),
        verdict=_verdict(case),
        spare=_spare(case),
        note="; ".join(_notes(case)),
    )


def _notes(case: LossCase) -> Iterator[str]:
    if case.why:
        yield case.why
    if case.lasts_s is not None:
        yield f"takes {shown_duration(case.lasts_s)}"
    moment = case.moment
    if moment is None:
        return
    if moment.repeated_count > 1:
        yield f"the demand comes {moment.repeated_count} times until it is over"
    if case.kind not in _PLANNED:
        yield f"at the fullest moment {_lost(moment)}"
    yield _after(moment, case.lasts_s)


def _lost(moment: Moment) -> str:
    lost = "1 request is" if moment.lost_request_count == 1 else f"{moment.lost_request_count:,} requests are"
    if moment.longest_wait_s is None:
        return f"{lost} lost{' for good' if moment.lost_request_count else ''}"
    return f"{lost} lost and sent again, the slowest after {shown_duration(moment.longest_wait_s)}"


def _after(moment: Moment, lasts_s: float | None) -> str:
    near, over_all = (
        [_said(each) for each in results if each.sample_count and not each.kept]
        for results in (moment.slo_after, moment.slo_overall)
    )
    again = "" if moment.recovery.too_soon and moment.kept else holds_again(moment.recovery)
    if near:
        broken = f"in the window after: {near[0]}"
        return f"{again} ({broken})" if again else broken
    if over_all:
        return f"those who arrive then are served as promised; over all requests: {over_all[0]}"
    if again and moment.kept and not moment.recovery.too_soon:
        return f"those who arrive in the window after are served as promised; {later_windows(moment.recovery)}"
    if again:
        return again
    left_s = moment.recovery.demand_left_s
    if lasts_s is not None and lasts_s > left_s:
        return f"those who arrive in the {shown_duration(left_s)} of it that were replayed are served as promised"
    return "those who arrive then are served as promised throughout"


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
    return f"{spoken(result.name)} {value_of_limit(result)}"


def _spare(case: LossCase) -> str:
    if case.kind in _PLANNED:
        return ""
    if not case.required:
        return "not asked for"
    if not case.spare_replica_count:
        return "no further spare"
    return f"{case.spare_replica_count} more to spare, {shown_usd(case.spare_usd_per_hour)}/h"
