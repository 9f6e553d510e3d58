"""How events and bursts are said, for one fleet and for pools."""

from collections.abc import Iterator, Sequence

from tokenfleet import planner
from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.readiness import Ready
from tokenfleet.app.recovery_words import holds_again, over
from tokenfleet.app.slo_words import shown_value, spoken
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.slo import SloResult


def start_said(ready: Ready) -> str:
    """How long a start takes, and who says so."""
    span = shown_duration(ready.high_s)
    if ready.low_s < ready.high_s:
        span = f"{shown_duration(ready.low_s)} to {span}, {shown_duration(ready.typical_s)} as a rule"
    return f"a start takes {span} ({ready.source})"


def moment_said(time_s: float) -> str:
    """``at 6 min``; a time before the demand begins is below 0."""
    return f"at {shown_duration(time_s)}" if time_s >= 0.0 else f"{shown_duration(-time_s)} before the demand begins"


def warm_lines(warm: planner.Warmed | None, ready: Ready | None, added_count: int) -> Iterator[str]:
    """What to have at hand before the event, and what warming prefixes does to its first minute."""
    yield from prepared_lines(ready, added_count)
    if warm is None:
        yield "no prompt beginnings are shared, so there is no prefix to warm"
        return
    longest = ", ".join(f"{each.token_count:,} tokens ({each.request_count:,} requests)" for each in warm.prefixes[:3])
    count = "1 prefix" if len(warm.prefixes) == 1 else f"{len(warm.prefixes)} prefixes"
    yield f"{count} on every replica, {shown_duration(warm.lead_s)} ahead; the hottest: {longest}"
    cold, hot = warm.cold, warm.warm
    yield (
        f"first minute on fresh replicas: TTFT p50 {_time(cold.ttft_p50_s)} cold, {_time(hot.ttft_p50_s)} warm; p99 "
        f"{_time(cold.ttft_p99_s)} cold, {_time(hot.ttft_p99_s)} warm; input from the cache {cold.cached_fraction:.0%} "
        f"cold, {hot.cached_fraction:.0%} warm"
    )


def prepared_lines(ready: Ready | None, added_count: int) -> Iterator[str]:
    """What to have at hand for the replicas that are added."""
    if ready is not None and ready.prepared_high_s is not None and added_count:
        yield (
            f"image, weights on local disk and compiled graphs on nodes that stand ready: a start takes at most "
            f"{shown_duration(ready.prepared_high_s)} instead of {shown_duration(ready.high_s)}"
        )


def burst_lines(bursts: Sequence[planner.Burst]) -> Iterator[str]:
    """How large a burst that nobody foresaw is borne."""
    yield "nobody foresaw, in the middle of the peak; times the usual demand, by replay:"
    for burst in bursts:
        least = " or more" if burst.at_least else ""
        yield (
            f"{shown_duration(burst.length_s)}: {burst.whole_factor:.2f}{least} with all replicas, "
            f"{burst.carrying_factor:.2f} with the spare gone; one of {burst.larger_factor:.2f} is "
            f"{over(burst.larger_settled, 'its end')}"
        )
        if burst.bounded is not None:
            door = burst.bounded
            yield (
                f"  with at most {door.queue_limit_count} waiting per replica {door.refused_fraction:.0%} of it are "
                f"turned away, and the others have their first token within {_time(door.ttft_p99_s)} (p99)"
            )


def no_number(replicas: str, keep: str, cap_fraction: float | None) -> str:
    """That none do: ``no number of these replicas keeps the promise through it``; a cap is kept through it, too."""
    kept = "the promise" if cap_fraction is None else f"the promise and the utilization_cap of {cap_fraction:.0%}"
    return f"{replicas} {keep} {kept} through it"


def cap_lines(cap_fraction: float | None) -> Iterator[str]:
    """That what is needed keeps the cap of usual times; nothing where there is none."""
    if cap_fraction is not None:
        kept = f"the utilization_cap of {cap_fraction:.0%} is kept at its peak, as in usual times"
        yield f"{kept}: without it the promise may take fewer"


def endured_line(endured: planner.Endured) -> str:
    """What becomes of the event on some replicas."""
    one = endured.replica_count == 1
    kept, broken = ("keeps the promise", "breaks it") if one else ("keep the promise", "break it")
    verdict = kept if endured.kept else f"{broken} ({_worst(endured.slo)})"
    count, waiting = replicas_said(endured.replica_count), endured.waiting_peak_count
    said = f"{count} {verdict}: at most {waiting:,} requests wait"
    # Who keeps it and is seen no longer has nothing that could be over.
    silent = endured.kept and endured.settled.too_soon
    return said if silent else f"{said}, {over(endured.settled, 'the event')}"


def scale_back_s(known: planner.KnownSpike | planner.PoolsSpike) -> float | None:
    """When the added replicas may go, in seconds of the demand; ``None`` where the queue does not settle within it."""
    if known.endured is None or known.endured.settled.after_s is None:
        return None
    after_s = known.endured.settled.after_s if known.let_go is None else known.let_go.after_s
    return known.event.demand_end_s + after_s


def let_go_line(at_s: float, found: planner.LetGo | None) -> str:
    """When the added replicas may go, and what a replay without them shows; ``None``: those who carry are as ever."""
    said = f"let them go at {shown_duration(at_s)}"
    if found is None:
        return f"{said}: by then those who arrive are served as promised again"
    if found.without.after_s == 0.0:
        return f"{said}: replayed without them from then on, those who arrive are served as promised"
    if found.without.too_soon:
        return (
            f"{said}: by then those who arrive are served as promised; too little demand follows to see it without them"
        )
    return f"{said} at the earliest: replayed without them, {holds_again(found.without)}"


def _worst(results: tuple[SloResult, ...]) -> str:
    broken = [each for each in results if each.sample_count and not each.kept]
    if not broken:
        return "outside of the event's own window"
    said = []
    for each in broken:
        value = "never" if each.predicted is None else shown_value(each.unit, each.predicted)
        said.append(f"{spoken(each.name)} {value} of {shown_value(each.unit, each.promised)}")
    return ", ".join(said)


def _time(value_s: float | None) -> str:
    return "unknown" if value_s is None else shown_duration(value_s)


def gigabytes_said(size_bytes: float) -> str:
    """``105 GB``."""
    size = size_bytes / 1e9
    return f"{size:,.0f} GB" if size >= 100.0 else f"{size:.3g} GB"


def replicas_said(count: int) -> str:
    """``1 replica``, ``5 replicas``."""
    return "1 replica" if count == 1 else f"{count} replicas"


def gpus_said(count: int) -> str:
    """``1 GPU``, ``6 GPUs``."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def carry_said(count: int) -> str:
    """``1 carries it``, ``5 carry it``."""
    return "1 carries it" if count == 1 else f"{count} carry it"


def hour_said(sized: Sized) -> str:
    """``$3.20/h``."""
    return f"{shown_usd(sized.price_usd_per_hour)}/h"


def fleet_document(sized: Sized | None) -> dict[str, object] | None:
    """One fleet, for machines."""
    if sized is None:
        return None
    return {
        "gpu": sized.replica.deployment.gpu,
        "gpu_count": sized.gpu_count,
        "replica_count": sized.replica_count,
        "carrying_replica_count": sized.carrying_count,
        "price_usd_per_hour": sized.price_usd_per_hour,
    }


def ladder_lines(bursts: Sequence[planner.Burst]) -> Iterator[str]:
    """How much each rung of a ladder adds, burst by burst."""
    yield "how large a burst may be for those served to be served as promised, others refused, all replicas there:"
    for burst in bursts:
        yield f"{shown_duration(burst.length_s)}, and what becomes of one of {burst.larger_factor:.2f} times the usual:"
        yield from map(_ride, burst.rungs)


def _ride(ride: planner.RungRide) -> str:
    given_up = f"+ {ride.kinds[-1]}" if ride.kinds else "the bound of the queue"
    least = " or more" if ride.at_least else ""
    kept = "the others as promised" if ride.larger_kept else "the others late"
    taken = f", {ride.larger_climbed_count} of {len(ride.kinds)} rungs taken" if ride.kinds else ""
    settled = over(ride.larger_settled, "its end")
    return f"{given_up}: {ride.factor:.2f}{least}; {ride.larger_refused_fraction:.0%} refused, {kept}{taken}, {settled}"
