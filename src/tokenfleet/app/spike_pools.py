"""``spike`` where the plan is one of pools: an event and bursts on all of them together, and what each pool needs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from tokenfleet import planner
from tokenfleet.app.compose import Teller
from tokenfleet.app.quantities import shown_count, shown_duration, shown_usd
from tokenfleet.app.readiness import Ready, ready
from tokenfleet.app.spike_words import (
    burst_lines,
    cap_lines,
    carry_said,
    endured_line,
    fleet_document,
    gpus_said,
    hour_said,
    ladder_lines,
    let_go_line,
    moment_said,
    no_number,
    prepared_lines,
    replicas_said,
    scale_back_s,
    start_said,
    warm_lines,
)
from tokenfleet.app.summary import Block, replica_name
from tokenfleet.control import Ladder
from tokenfleet.domain.plan import Plan, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Trace

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSpiked:
    """Everything the command says of pools."""

    usual: planner.System
    """As they are planned, with their spare replicas."""
    who: Mapping[str, str]
    """Whom each serves, in words."""
    ready: Mapping[str, Ready]
    """By pool."""
    known: planner.PoolsSpike | None
    bursts: tuple[planner.Burst, ...]
    notes: tuple[str, ...]

    @property
    def scale_back_s(self) -> float | None:
        """When the added replicas may go; ``None`` where the queue does not settle within the demand."""
        return None if self.known is None else scale_back_s(self.known)

    def trigger_s(self, pool: planner.PoolNeeds) -> float | None:
        """When what is added to a pool must be asked for, at the longest start; may be below 0."""
        if self.known is None or not pool.added_replica_count:
            return None
        lead_s = pool.warm.lead_s if pool.warm else 0.0
        # Those that share GPUs come together.
        host = pool.usual.beside or pool.name
        high_s = max(self.ready[part.name].high_s for part in self.usual.parts if part.host == host)
        return self.known.event.start_s - high_s - lead_s

    def reserve_gpu_hours(self, pool: planner.PoolNeeds) -> float | None:
        """What is added to a pool, from trigger to the end."""
        trigger_s = self.trigger_s(pool)
        if trigger_s is None or self.scale_back_s is None:
            return None
        return pool.added_gpu_count * (self.scale_back_s - trigger_s) / _HOUR_S


def usual_of(plan: Plan) -> tuple[planner.System, dict[str, str]]:
    """The pools of a plan, and whom each serves."""
    return planner.system_of(plan.pools, plan.handover), {pool.name: pool.who for pool in plan.pools}


def pools_spiked(
    question: PlanQuestion,
    trace: Trace,
    usual: planner.System,
    who: Mapping[str, str],
    event: planner.Event | None,
    teller: Teller,
    *,
    bursting: Trace,
    cold_start_s: float | None,
    ladder: Ladder | None,
    notes: tuple[str, ...],
) -> PoolsSpiked:
    """Asks the pools of a plan for an event and for bursts.

    Args:
        question: What is asked of all of them.
        trace: The usual demand.
        usual: The pools that are planned for it.
        who: Whom each serves, in words.
        event: ``None`` where none is known.
        teller: Told what is being done.
        bursting: The demand of bursts, with the requests that ``shed_batch`` refuses as a class of their own.
        cold_start_s: ``cold_start`` of the scenario; ``None`` where it says nothing.
        ladder: Stands in front of all pools; ``None``: nothing is given up.
        notes: Rungs that this demand cannot show.
    """
    starts = {part.name: ready(cold_start_s, part.sized.replica) for part in usual.parts}
    known = None
    if event is not None:
        teller.say("replaying the event")
        after_s = {name: start.typical_s for name, start in starts.items()}
        known = planner.spike_of_pools(question, trace, usual, who, event, ready_after_s=after_s, progress=teller.step)
    teller.say("looking for the largest burst")
    found = planner.bursts_of_pools(
        question,
        bursting,
        usual,
        queue_limit_count=question.admission.queue_limit_count,
        ladder=ladder,
        progress=teller.step,
    )
    return PoolsSpiked(usual=usual, who=who, ready=starts, known=known, bursts=found, notes=notes)


def pools_spike_document(found: PoolsSpiked) -> dict[str, object]:
    """Everything found, for machines; times in seconds of the demand."""
    known = found.known
    needs = {} if known is None else {pool.name: pool for pool in known.pools}
    return {
        "usual": None,
        "pools": [_pool(found, name, who, sized, needs.get(name)) for name, who, sized in _usual(found)],
        "why_not": [],
        "ready": {name: asdict(start) for name, start in found.ready.items()},
        "event": None if known is None else _event(found, known),
        "bursts": [asdict(burst) for burst in found.bursts],
        "notes": list(found.notes),
    }


def _event(found: PoolsSpiked, known: planner.PoolsSpike) -> dict[str, object]:
    return {
        **asdict(known.event),
        "usual_fleet": asdict(known.usual),
        "endured": asdict(known.endured) if known.endured else None,
        "late": asdict(known.late) if known.late else None,
        "scale_back_s": found.scale_back_s,
        "let_go": asdict(known.let_go) if known.let_go else None,
        "utilization_cap_fraction": known.utilization_cap_fraction,
    }


def _pool(found: PoolsSpiked, name: str, who: str, usual: Sized, needs: planner.PoolNeeds | None) -> dict[str, object]:
    document: dict[str, object] = {"pool": name, "who": who, "usual": fleet_document(usual)}
    if needs is None:
        return document
    hours = found.reserve_gpu_hours(needs)
    return {
        **document,
        "request_count": needs.request_count,
        "usual_request_count": needs.usual_request_count,
        "input_tokens": needs.input_tokens,
        "output_tokens": needs.output_tokens,
        "needed": fleet_document(needs.needed),
        "reasons": [reason.text for reason in needs.reasons],
        "warm": asdict(needs.warm) if needs.warm else None,
        "added_replica_count": needs.added_replica_count,
        "added_gpu_count": needs.added_gpu_count,
        "trigger_s": found.trigger_s(needs),
        "reserve_gpu_hours": hours,
        "reserve_usd": None if hours is None else hours * usual.price.price_usd_per_gpu_hour,
    }


def _usual(found: PoolsSpiked) -> Iterator[tuple[str, str, Sized]]:
    return ((part.name, found.who[part.name], part.sized) for part in found.usual.parts)


def pools_spike_blocks(found: PoolsSpiked) -> Iterator[Block]:
    """The same for a person."""
    lines = [
        f"{name}: {replicas_said(sized.replica_count)} of {replica_name(sized)}, {hour_said(sized)} ({who})"
        for name, who, sized in _usual(found)
    ]
    count = "1 pool" if len(lines) == 1 else f"{len(lines)} pools"
    yield "Usual", [*lines, f"{count}, {shown_usd(found.usual.price_usd_per_hour)}/h"]
    if found.known is not None:
        yield from _known_blocks(found, found.known)
    yield "Bursts", list(burst_lines(found.bursts))
    if any(burst.rungs for burst in found.bursts):
        yield "Ladder", ["one door in front of all pools", *ladder_lines(found.bursts), *found.notes]
    elif found.notes:
        yield "Assumed", list(found.notes)


def _known_blocks(found: PoolsSpiked, known: planner.PoolsSpike) -> Iterator[Block]:
    event, pools = known.event, known.pools
    yield (
        "Event",
        [
            f"{event.factor:.3g} times the usual from {shown_duration(event.start_s)} on for "
            f"{shown_duration(event.length_s)}, {event.shape}",
            *(_asked(pool) for pool in pools),
        ],
    )
    yield "As is", [endured_line(known.usual)]
    if known.endured is None:
        yield "Needs", _unmet(known)
        return
    cap_fraction = known.utilization_cap_fraction
    needs = (_needs(pool, cap_fraction) for pool in pools)
    yield "Needs", [*needs, *cap_lines(cap_fraction), endured_line(known.endured)]
    yield "When", list(_when(found, known))
    warm = [line for pool in pools for line in _warm(found, pool)]
    if not all(pool.warming_is_asked for pool in pools):
        warm.append("what prefixes that are warmed save is not tried: prompts sent ahead go to no pool that is named")
    yield "Warm", warm


def _asked(pool: planner.PoolNeeds) -> str:
    return (
        f"{pool.name}: {pool.request_count:,} requests instead of {pool.usual_request_count:,}, "
        f"{shown_count(pool.input_tokens)} input + {shown_count(pool.output_tokens)} output tokens"
    )


def _unmet(known: planner.PoolsSpike) -> list[str]:
    """Where some pool has no answer: of pools that are sized together all have the same reason."""
    cap_fraction = known.utilization_cap_fraction
    (first, *others) = (pool.reasons for pool in known.pools)
    if first and all(each == first for each in others):
        return [no_number("no numbers of these replicas", "keep", cap_fraction), *(reason.text for reason in first)]
    return [_needs(pool, cap_fraction) for pool in known.pools]


def _needs(pool: planner.PoolNeeds, cap_fraction: float | None) -> str:
    needed = pool.needed
    if needed is None:
        why = " ".join(reason.text for reason in pool.reasons)
        return f"{pool.name}: {no_number('no number of these replicas', 'keeps', cap_fraction)}; {why}"
    spare = needed.replica_count - needed.carrying_count
    lost = f", {spare} may fail as in usual times" if spare else ""
    count = replicas_said(needed.replica_count)
    return f"{pool.name}: {count}: {carry_said(needed.carrying_count)}{lost}; {hour_said(needed)}"


def _when(found: PoolsSpiked, known: planner.PoolsSpike) -> Iterator[str]:
    # What stands beside another pool comes with it.
    grown = [pool for pool in known.pools if pool.added_replica_count and pool.usual.beside is None]
    if not grown:
        yield "nothing to start: the usual pools are enough"
        return
    for pool in grown:
        more, moment = replicas_said(pool.added_replica_count), moment_said(found.trigger_s(pool) or 0.0)
        start = start_said(found.ready[pool.name])
        yield f"{pool.name}: ask for {more} more ({gpus_said(pool.added_gpu_count)}) {moment}: {start}"
    if known.late is not None:
        yield f"asked for only when it begins: {endured_line(known.late)}"
    if found.scale_back_s is None:
        yield "the queue does not settle within this demand: plan with a longer one to see when to scale back"
        return
    yield let_go_line(found.scale_back_s, known.let_go)
    held = [(pool, found.reserve_gpu_hours(pool) or 0.0) for pool in grown]
    usd = sum(hours * pool.usual.price.price_usd_per_gpu_hour for pool, hours in held)
    hours = sum(each for _, each in held)
    yield f"reserve {hours:,.1f} GPU-hours, {shown_usd(usd)}: on that day there may be none to rent"


def _warm(found: PoolsSpiked, pool: planner.PoolNeeds) -> Iterator[str]:
    ready, added_count = found.ready[pool.name], pool.added_replica_count
    lines = warm_lines(pool.warm, ready, added_count) if pool.warming_is_asked else prepared_lines(ready, added_count)
    return (f"{pool.name}: {line}" for line in lines)
