"""``spike``: an event that is known, and the bursts that are not, for the fleet that a scenario plans."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Annotated

import numpy as np
from pydantic import Field

from tokenfleet import planner, workload
from tokenfleet.app.bought import bought
from tokenfleet.app.compose import Teller, compose
from tokenfleet.app.quantities import shown_count, shown_duration, shown_rate, shown_usd
from tokenfleet.app.readiness import Ready, ready
from tokenfleet.app.scaling_question import batch_of, check_before_pools, ladder_of, without_effect
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Count, Duration, Positive, Strict, Tokens
from tokenfleet.app.spike_pools import PoolsSpiked, pools_spiked, usual_of
from tokenfleet.app.spike_words import (
    burst_lines,
    cap_lines,
    carry_said,
    endured_line,
    fleet_document,
    gigabytes_said,
    gpus_said,
    hour_said,
    ladder_lines,
    let_go_line,
    moment_said,
    no_number,
    replicas_said,
    scale_back_s,
    start_said,
    warm_lines,
)
from tokenfleet.app.summary import Block, replica_name
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Bools, Trace

_HOUR_S = 3600.0
_MOST_TIMES = 1_000
"""Of the usual demand: beyond, what those of the window do is no pattern any more."""


class SpikeOptions(Strict):
    """The event, where one is known."""

    at: Duration | None = None
    duration: Duration = 900.0
    factor: Positive | None = None
    tokens: Tokens | None = None
    requests: Annotated[Count, Field(ge=1)] | None = None
    shape: workload.Shape = "flat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """Everything the command says."""

    usual: Sized | None
    """The fleet planned for the usual demand; ``None`` when there is none."""
    why_not: tuple[str, ...]
    ready: Ready | None
    known: planner.KnownSpike | None
    bursts: tuple[planner.Burst, ...]
    notes: tuple[str, ...] = ()
    """Rungs of the ladder that this demand cannot show."""

    @property
    def trigger_s(self) -> float | None:
        """When the added replicas must be asked for, in seconds of the demand, at the longest start; may be below 0."""
        if self.known is None or self.ready is None or not self.known.added_replica_count:
            return None
        lead_s = self.known.warm.lead_s if self.known.warm else 0.0
        return self.known.event.start_s - self.ready.high_s - lead_s

    @property
    def scale_back_s(self) -> float | None:
        """When the added replicas may go; ``None`` where the queue does not settle within the demand."""
        return None if self.known is None else scale_back_s(self.known)

    @property
    def reserve_gpu_hours(self) -> float | None:
        """What the added replicas hold from trigger to the end."""
        if self.known is None or self.trigger_s is None or self.scale_back_s is None:
            return None
        return self.known.added_gpu_count * (self.scale_back_s - self.trigger_s) / _HOUR_S


def spike(
    scenario: Scenario, options: SpikeOptions, teller: Teller, replay: planner.Replay | None = None
) -> Spike | PoolsSpiked:
    """Plans the usual fleet, or the pools that cost less, then asks it for the event and for bursts.

    Raises:
        BadInput: as for a plan; an event outside of the demand, or said in two ways.
    """
    from tokenfleet import simulator

    composition = compose(scenario, teller)
    event = event_asked(composition.trace, options)
    simulator.warm_up(announce=teller.announce)
    base = bought(composition, teller, replay)
    spec = scenario.ladder
    # The bound of the queue alone is told with the bursts.
    ladder = None if spec is None or not spec.rungs else ladder_of(spec)
    batch = None if spec is None or ladder is None else batch_of(spec, composition.trace)
    notes = () if ladder is None else without_effect(ladder, composition.trace, batch)
    bursting = _with_batch(composition.trace, batch)
    if base.pools is not None:
        if ladder is not None:
            check_before_pools(ladder, "ladder")
        return pools_spiked(
            composition.question,
            composition.trace,
            *usual_of(base.pools),
            event,
            teller,
            bursting=bursting,
            cold_start_s=scenario.cold_start,
            ladder=ladder,
            notes=notes,
        )
    if base.sized is None or base.fleet is None:
        return Spike(usual=None, why_not=base.why_not, ready=None, known=None, bursts=())
    question, trace = replace(composition.question, router=base.fleet.router), composition.trace
    start = ready(scenario.cold_start, base.sized.replica)
    known = None
    if event is not None:
        teller.say("replaying the event")
        known = planner.known_spike(
            question, trace, base.sized, event, ready_after_s=start.typical_s, progress=teller.step
        )
    teller.say("looking for the largest burst")
    return Spike(
        usual=base.sized,
        why_not=(),
        ready=start,
        known=known,
        bursts=planner.bursts(
            question,
            bursting,
            base.sized,
            queue_limit_count=question.admission.queue_limit_count,
            ladder=ladder,
            progress=teller.step,
        ),
        notes=notes,
    )


def _with_batch(trace: Trace, batch: Bools | None) -> Trace:
    """The demand with the requests that ``shed_batch`` refuses as a class of their own."""
    if batch is None:
        return trace
    usual = np.zeros(trace.request_count, dtype=np.int32) if trace.class_bits is None else trace.class_bits
    bits = usual | np.where(batch, 1 << len(trace.classes), 0).astype(np.int32)
    return replace(trace, class_bits=bits.astype(np.int32), classes=(*trace.classes, planner.BATCH))


def event_asked(trace: Trace, options: SpikeOptions) -> planner.Event | None:
    """The event that options name; ``None``: none.

    Raises:
        BadInput: it is said in two ways, or is outside of the demand.
    """
    given = [name for name in ("factor", "tokens", "requests") if getattr(options, name) is not None]
    if not given:
        if options.at is not None:
            raise BadInput.at("--at", "says when, not how much", "give --factor, --tokens or --requests")
        return None
    if len(given) > 1:
        said = " and ".join(f"--{name}" for name in given)
        raise BadInput.at(f"--{given[1]}", f"the event is said in two ways: {said}", "give one of them")
    start_s = workload.peak_window(trace)[0] if options.at is None else options.at
    end_s = start_s + options.duration
    if end_s > trace.duration_s + 1.0:
        what = f"the event ends at {shown_duration(end_s)}, the demand at {shown_duration(trace.duration_s)}"
        where = "--duration" if start_s < trace.duration_s else "--at"
        raise BadInput.at(where, what, "make it shorter, earlier, or workload.duration longer")
    return planner.Event(
        start_s=start_s, length_s=options.duration, factor=_factor(trace, start_s, end_s, options), shape=options.shape
    )


def _factor(trace: Trace, start_s: float, end_s: float, options: SpikeOptions) -> float:
    inside = (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    if not inside.any():
        raise BadInput.at("--at", "nobody asks for anything then", "choose a time in which requests arrive")
    count = int(inside.sum())
    if options.factor is not None:
        where, factor = "--factor", options.factor
    elif options.tokens is not None:
        where = "--tokens"
        usual = int(trace.input_tokens[inside].sum(dtype=int)) + int(trace.output_tokens[inside].sum(dtype=int))
        factor = 1.0 + options.tokens / usual
    else:
        where, factor = "--requests", 1.0 + (options.requests or 0) / count
    if factor <= 1.0:
        raise BadInput.at(where, f"{factor:g} is no surge", "give a factor above 1")
    if (factor - 1.0) * count < 0.5:
        raise BadInput.at(where, f"adds not one request to the {count:,} of that time", "give more")
    if factor > _MOST_TIMES:
        what = f"makes {factor:,.0f} times the usual demand of that time"
        raise BadInput.at(where, what, f"ask for {_MOST_TIMES:,} times at most, or begin with a larger demand")
    return factor


def spike_document(found: Spike) -> dict[str, object]:
    """Everything found, for machines; times in seconds of the demand."""
    return {
        "usual": fleet_document(found.usual),
        "pools": [],
        "why_not": list(found.why_not),
        "ready": asdict(found.ready) if found.ready else None,
        "event": _known(found) if found.known else None,
        "bursts": [asdict(burst) for burst in found.bursts],
        "notes": list(found.notes),
    }


def _known(found: Spike) -> dict[str, object]:
    known = found.known
    if known is None:
        return {}
    return {
        **asdict(known.event),
        "budget": asdict(known.budget),
        "usual_fleet": asdict(known.usual),
        "needed": fleet_document(known.needed),
        "reasons": [reason.text for reason in known.reasons],
        "endured": asdict(known.endured) if known.endured else None,
        "late": asdict(known.late) if known.late else None,
        "warm": asdict(known.warm) if known.warm else None,
        "added_replica_count": known.added_replica_count,
        "added_gpu_count": known.added_gpu_count,
        "utilization_cap_fraction": known.utilization_cap_fraction,
        "trigger_s": found.trigger_s,
        "scale_back_s": found.scale_back_s,
        "let_go": asdict(known.let_go) if known.let_go else None,
        "reserve_gpu_hours": found.reserve_gpu_hours,
        "reserve_usd": _reserve_usd(found),
    }


def _reserve_usd(found: Spike) -> float | None:
    if found.reserve_gpu_hours is None or found.usual is None:
        return None
    return found.reserve_gpu_hours * found.usual.price.price_usd_per_gpu_hour


def spike_blocks(found: Spike) -> list[Block]:
    """The same for a person."""
    if found.usual is None:
        return [("Answer", ["no fleet keeps the promise in usual times", *found.why_not])]
    usual = found.usual
    fleet = f"{replicas_said(usual.replica_count)} of {replica_name(usual)}, {hour_said(usual)}"
    blocks: list[Block] = [("Usual", [fleet])]
    if found.known is not None:
        blocks += _known_blocks(found, found.known)
    blocks.append(("Bursts", list(burst_lines(found.bursts))))
    if any(burst.rungs for burst in found.bursts):
        blocks.append(("Ladder", [*ladder_lines(found.bursts), *found.notes]))
    return blocks


def _known_blocks(found: Spike, known: planner.KnownSpike) -> Iterator[Block]:
    yield "Event", list(_event_lines(known))
    yield "As is", [endured_line(known.usual)]
    if known.needed is None:
        none = no_number("no number of these replicas", "keeps", known.utilization_cap_fraction)
        yield "Needs", [none, *(reason.text for reason in known.reasons)]
        return
    needed, formula = known.needed, known.budget.formula_carrying_count
    spare = needed.replica_count - needed.carrying_count
    lost = f", {spare} may fail as in usual times" if spare else ""
    lines = [f"{replicas_said(needed.replica_count)}: {carry_said(needed.carrying_count)}{lost}; {hour_said(needed)}"]
    lines += cap_lines(known.utilization_cap_fraction)
    if formula is not None and formula != needed.carrying_count:
        carry = carry_said(formula)
        lines.append(f"tokens of the busiest minute alone would say {carry}: they know neither queues nor quantiles")
    yield "Needs", [*lines, *([endured_line(known.endured)] if known.endured else [])]
    yield "When", list(_when(found, known))
    yield "Warm", list(warm_lines(known.warm, found.ready, known.added_replica_count))


def _event_lines(known: planner.KnownSpike) -> Iterator[str]:
    event, budget = known.event, known.budget
    yield (
        f"{event.factor:.3g} times the usual from {shown_duration(event.start_s)} on for "
        f"{shown_duration(event.length_s)}, {event.shape}: {budget.request_count:,} requests instead of "
        f"{budget.usual_request_count:,}"
    )
    yield (
        f"{shown_count(budget.input_tokens)} input + {shown_count(budget.output_tokens)} output tokens, "
        f"{shown_rate(budget.mean_tokens_per_s)} tokens/s on average"
    )
    if budget.work_s is not None and budget.full_tokens_per_s is not None:
        yield (
            f"by the plain formula {shown_duration(budget.work_s)} of work at the "
            f"{shown_rate(budget.full_tokens_per_s)} tokens/s that the usual replicas which carry do when they are full"
        )
    yield (
        f"KV {gigabytes_said(budget.kv_at_once_bytes)} if all of it were there at once, "
        f"{gigabytes_said(budget.kv_pool_bytes)} on the replicas that carry"
    )


def _when(found: Spike, known: planner.KnownSpike) -> Iterator[str]:
    ready = found.ready
    if not known.added_replica_count or ready is None or found.trigger_s is None:
        yield "nothing to start: the usual fleet is enough"
        return
    more, moment = replicas_said(known.added_replica_count), moment_said(found.trigger_s)
    yield f"ask for {more} more ({gpus_said(known.added_gpu_count)}) {moment}: {start_said(ready)}"
    if known.late is not None:
        late = endured_line(known.late)
        yield f"asked for only when it begins, ready {shown_duration(ready.typical_s)} later: {late}"
    if found.scale_back_s is None:
        yield "the queue does not settle within this demand: plan with a longer one to see when to scale back"
        return
    yield let_go_line(found.scale_back_s, known.let_go)
    usd = _reserve_usd(found)
    if found.reserve_gpu_hours is not None and usd is not None:
        hours = f"{found.reserve_gpu_hours:,.1f} GPU-hours, {shown_usd(usd)}"
        yield f"reserve {hours}: on that day there may be none to rent"
