"""What becomes of the promise when the worst replica, node or zone is gone, and while a version is changed.

Survivors serve the whole trace alone, hot: nothing that would still have to start counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import LossCase, LossKind, Moment, Placement, Redundancy
from tokenfleet.planner import words
from tokenfleet.planner.multiples import whole_of
from tokenfleet.planner.placement import LOSSES, placed, survivors
from tokenfleet.planner.redundancy import asked, spare_lines
from tokenfleet.planner.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Survived:
    """Where the replicas stand, and each loss."""

    placement: Placement | None
    """``None`` where the zones have no room: a fleet sized before its zones were known."""
    cases: tuple[LossCase, ...]


def losses(
    question: PlanQuestion,
    part: Sized,
    judged: Callable[[int], Verdict],
    moment: Callable[[LossCase, Placement], Moment | None],
) -> Survived:
    """Examines every loss that is asked for, and of those that are not whatever a fleet of this size can show.

    Args:
        question: What may be lost; a first look examines only that.
        part: The fleet for the stretch that is replayed.
        judged: The whole trace on so many replicas.
        moment: The loss itself on the whole fleet, where it can be replayed.
    """
    sized = whole_of(part, question)
    placement = placed(sized.replica_count, sized.replica, asked(question))
    if placement is None:
        return Survived(None, ())
    lines = _lines(question, sized)
    usd_per_replica = sized.price_usd_per_hour / sized.replica_count
    cases = []
    for case in _cases(question, sized, placement):
        spare = lines.get(case.kind, 0)
        paid = replace(case, spare_replica_count=spare, spare_usd_per_hour=spare * usd_per_replica)
        seen = _judged(paid, question, judged)
        cases.append(replace(seen, moment=moment(seen, placement) if seen.serving_replica_count else None))
    return Survived(placement, tuple(cases))


def _lines(question: PlanQuestion, sized: Sized) -> dict[str, int]:
    """Spare replicas by the loss that asks for them; what riding through takes goes to the last one asked for."""
    lines = spare_lines(question, sized.replica, sized.carrying_count)
    wanted = [kind for kind in LOSSES if asked(question).count_of(kind)]
    more = sized.spare_count - sum(lines.values())
    return {**lines, wanted[-1]: lines[wanted[-1]] + more} if wanted else lines


def _cases(question: PlanQuestion, sized: Sized, placement: Placement) -> Iterator[LossCase]:
    wanted = asked(question)
    for kind in LOSSES:
        required = wanted.count_of(kind) > 0
        if required or not question.first_look:
            yield _loss(kind, wanted, placement, required)
    if not question.first_look:
        yield _maintenance(wanted, placement)
        yield _rollout(question, sized, placement)


def _loss(kind: LossKind, wanted: Redundancy, placement: Placement, required: bool) -> LossCase:
    count = max(1, wanted.count_of(kind))
    serving = survivors(placement, kind, count, wanted.zones)
    alone = kind == "zone" and len(placement.by_zone) < 2
    return LossCase(
        kind=kind,
        count=count,
        required=required,
        lost=_lost(kind, count, placement),
        lost_replica_count=placement.replica_count - serving,
        serving_replica_count=serving,
        kept=None if serving or alone else False,
        why=_why(kind, wanted, placement, serving),
        slo_peak=(),
        slo_overall=(),
        spare_replica_count=0,
        spare_usd_per_hour=0.0,
    )


def _maintenance(wanted: Redundancy, placement: Placement) -> LossCase:
    """A node that finishes what it holds before it goes leaves what its loss leaves."""
    return replace(
        _loss("node", wanted, placement, required=False),
        kind="maintenance",
        lost=f"{_lost('node', max(1, wanted.node_count), placement)} drained",
    )


def _lost(kind: LossKind, count: int, placement: Placement) -> str:
    if kind == "replica":
        return words.replicas(count)
    if kind == "zone":
        largest = sorted(placement.by_zone.items(), key=lambda item: -item[1])[:count]
        named = " and ".join(name for name, _ in largest if name)
        return f"zone {named}" if named else "the only zone"
    fullest = max(placement.nodes, key=lambda node: node.replica_count)
    where = f" in zone {fullest.zone}" if fullest.zone else ""
    return f"the fullest node{where}" if count == 1 else f"the {count} fullest nodes"


def _why(kind: LossKind, wanted: Redundancy, placement: Placement, serving: int) -> str:
    if kind == "zone" and len(placement.by_zone) < 2:
        return "all replicas stand in one zone" if wanted.zones else "no zones are named"
    if serving < 1:
        lame = [zone.name for zone in wanted.zones if not zone.stands_alone]
        if kind == "zone" and lame:
            return f"{' and '.join(lame)} cannot serve without the others: no weights or ingress of its own"
        return {"node": "all replicas stand on one node"}.get(kind, "nothing is left")
    return ""


def _rollout(question: PlanQuestion, sized: Sized, placement: Placement) -> LossCase:
    rollout = question.rollout
    at_once = rollout.max_surge_count + rollout.max_unavailable_count
    serving = max(0, sized.replica_count - rollout.max_unavailable_count)
    return LossCase(
        kind="rollout",
        count=at_once,
        required=False,
        lost=f"a new version, {words.replicas(at_once)} at a time",
        lost_replica_count=sized.replica_count - serving,
        serving_replica_count=serving,
        kept=None if serving else False,
        why="; ".join(_room(question, sized, placement, serving)),
        slo_peak=(),
        slo_overall=(),
        spare_replica_count=0,
        spare_usd_per_hour=0.0,
        lasts_s=rollout.lasts_s(sized.replica_count),
    )


def _room(question: PlanQuestion, sized: Sized, placement: Placement, serving: int) -> Iterator[str]:
    surge = question.rollout.max_surge_count
    missing = surge - placement.free_slot_count
    if surge:
        gpus = surge * sized.replica.deployment.layout.gpu_count
        room = "the nodes have room for it" if missing <= 0 else "the nodes are full: it needs one more meanwhile"
        yield f"{words.replicas(surge)} more meanwhile ({gpus} {'GPU' if gpus == 1 else 'GPUs'}): {room}"
    left = serving - sized.carrying_count
    yield f"{left} may fail meanwhile" if left > 0 else "no other may fail meanwhile"


def _judged(case: LossCase, question: PlanQuestion, judged: Callable[[int], Verdict]) -> LossCase:
    part = case.serving_replica_count // question.stands_for_count
    if part < 1:
        return case
    verdict = judged(part)
    return replace(case, kept=verdict.kept, slo_peak=verdict.peak, slo_overall=verdict.overall)
