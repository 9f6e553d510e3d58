"""Replays a scenario's traffic on a given fleet, and the same requests alone, and judges what happened."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from tokenfleet import catalog, contract, performance, simulator, workload
from tokenfleet.app.alone import alone, answered
from tokenfleet.app.around import Around, around_of
from tokenfleet.app.compose import Teller, demand_of, gpu_prices
from tokenfleet.app.demand_words import about_demand, at_max_output
from tokenfleet.app.intervals import (
    FleetIntervals,
    Intervals,
    Waits,
    fleet_intervals,
    intervals_of,
    left_tokens,
    waits_of,
)
from tokenfleet.app.provenance import resolved_scenario
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.sending import sending_s
from tokenfleet.contract import Diagnosis, DiagnosisLimits, Fairness, Minutes
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Floats, Trace, Workload, rows_of
from tokenfleet.planner.scaling import gpu_hours
from tokenfleet.simulator.controlling import Controller
from tokenfleet.simulator.replaying import MOST_SAMPLES

_MOST_SAMPLES: Final = 20_160
"""A week in half minutes: enough moments in the busiest minute of a day to see its queue."""
_MOST_GAUGES: Final = 4_000_000
"""Samples of one replica each: some half a gigabyte while a replay runs."""
_INTERVALS_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0)

Window = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One stretch of the run: the promise, and what holds it up."""

    slo: tuple[SloResult, ...]
    diagnosis: Diagnosis
    request_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What a person may set of a simulation beside traffic and fleet."""

    limits: DiagnosisLimits
    interval_s: float | None = None
    """Seconds between samples of the gauges; ``None``: chosen by the length of the trace."""
    as_logged: bool = False
    """The log was recorded on this very fleet: hold its own times against the replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A replay and what it means."""

    name: str
    model: str
    fleet: Fleet
    slo: Slo
    limits: DiagnosisLimits
    workload: Workload
    trace: Trace
    record: RunRecord
    interval_s: float
    peak_window_s: Window
    whole: Judged
    peak: Judged
    at_max_output_count: int | None
    """Requests whose outputs end at ``workload.max_output``; ``None`` where none is set."""
    resolved: dict[str, object]
    assumptions: tuple[str, ...]
    around: Around
    controller: Controller
    """Who watched the run, with the log of what was decided."""
    minutes: Minutes
    gpu_hours: float
    intervals: Intervals
    waits: Waits
    fleet_intervals: FleetIntervals
    fairness: Fairness | None
    """``None`` where fewer than two tenants are known."""


def interval_for(duration_s: float, fleets: Iterable[Fleet]) -> float:
    """Seconds between two samples of the gauges: a round number, 20,160 samples of so long a run at most.

    Of more than two hundred replicas fewer, so that their gauges have room in memory.
    """
    replica_count = sum(group.replica_count for fleet in fleets for group in fleet.groups)
    most = min(_MOST_SAMPLES, max(1, _MOST_GAUGES // replica_count))
    return next((each for each in _INTERVALS_S if duration_s <= each * most), duration_s / most)


def asked_interval_s(how: How, trace: Trace) -> float | None:
    """The time between two samples that somebody asked for; ``None`` where nobody did.

    Raises:
        BadInput: more samples than a replay takes.
    """
    interval_s, lasts_s = how.interval_s, trace.duration_s
    if interval_s is not None and lasts_s > MOST_SAMPLES * interval_s:
        what = (
            f"a sample every {shown_duration(interval_s)} gives more than {MOST_SAMPLES:,} in {shown_duration(lasts_s)}"
        )
        raise BadInput.at("--interval", what, f"{shown_duration(lasts_s / MOST_SAMPLES)} is the least")
    return interval_s


def _interval_s(how: How, sent: Trace, trace: Trace, around: Around) -> float:
    asked_s = asked_interval_s(how, trace)
    if asked_s is not None:
        return asked_s
    if around.lane is None or not around.lane.is_windowed:
        return interval_for(sending_s(trace), [around.fleet])
    # How many days batch waits for slots in its window, a replay alone knows.
    lasts_s = simulator.replay(sent, around.fleet, world=around.world(around.controller())).end_s
    return interval_for(lasts_s, [around.fleet])


def prefill_fraction_in(record: RunRecord, window_s: Window) -> float | None:
    """Share of prefill in the work that the requests of a window took, in all their attempts, whenever it was done.

    So the queue that a window leaves counts as its own work, and the one it found does not. ``None`` where they took
    none.

    Raises:
        ValueError: a record without a ledger.
    """
    if record.ledger is None:
        raise ValueError("a record without a ledger says nothing of single requests")
    inside = (record.arrival_s >= window_s[0]) & (record.arrival_s < window_s[1])
    prefill_s = float(record.ledger.prefill_gpu_s[inside].sum())
    whole_s = prefill_s + float(record.ledger.decode_gpu_s[inside].sum())
    return prefill_s / whole_s if whole_s > 0.0 else None


def arrived(sent: Trace, around: Around) -> Trace:
    """The requests of a closed loop with the times at which they come, as a replay shows them."""
    record = simulator.replay(sent, around.fleet, world=around.world())
    return replace(sent, arrival_s=record.arrival_s)


def in_time(trace: Trace) -> Trace:
    """The requests in the order in which they come."""
    order = np.argsort(trace.arrival_s, kind="stable")
    return rows_of(trace, order)


def simulate(asked: Scenario, model: ModelArchitecture, fleet: Fleet, how: How, teller: Teller) -> Simulated:
    """Replay the traffic of a scenario on a fleet, and judge it.

    Args:
        asked: Names the traffic and the promise.
        model: What is served.
        fleet: What serves it.
        how: Limits of the diagnosis, and what to sample and compare.
        teller: Told what is being done.

    Raises:
        BadInput: the demand cannot be read or drawn, the interval does not suit it, or the log has no times to
            compare with.
    """
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    trace, described = demand_of(asked)
    simulator.check_span(trace)
    seen = _seen_by_client(trace, asked.workload.growth) if how.as_logged else (None, None)
    simulator.warm_up(announce=teller.announce)
    around, sent = around_of(asked, fleet, trace)
    trace = sent if around.loop is None else arrived(sent, around)
    controller = around.controller()
    interval_s = _interval_s(how, sent, trace, around)
    window_s = workload.peak_window(trace if around.loop is None else in_time(trace))
    teller.say("replaying the demand")
    record = simulator.replay(
        sent, around.fleet, peak_window_s=window_s, telemetry_interval_s=interval_s, world=around.world(controller)
    )
    teller.say("replaying at both ends of the error band, and requests alone")
    whole, peak = _judged(trace, sent, around, record, asked.slo.targets(), how, window_s, seen, interval_s)
    serving = (group.replica.deployment.gpu for group in around.fleet.groups)
    gpus = tuple(catalog.gpu(name) for name in dict.fromkeys(serving))
    prices = tuple(price for gpu in gpus for price in gpu_prices(gpu, asked))
    done = intervals_of(record, interval_s, around.fleet, _models(around, model))
    return Simulated(
        name=asked.name,
        model=model.name,
        fleet=around.fleet,
        slo=asked.slo.targets(),
        limits=how.limits,
        workload=described,
        trace=trace,
        record=record,
        interval_s=interval_s,
        peak_window_s=window_s,
        whole=whole,
        peak=peak,
        at_max_output_count=at_max_output(asked.workload, trace),
        resolved=resolved_scenario(asked, model=model, gpus=gpus, prices=prices, trace=trace),
        assumptions=(*about_demand(asked, trace), *model.notes, *around.notes),
        around=around,
        controller=controller,
        minutes=contract.judge_minutes(around.waiting_for(record), asked.slo.targets()),
        gpu_hours=gpu_hours(record, around.fleet),
        intervals=done,
        waits=waits_of(record, trace, interval_s),
        fleet_intervals=fleet_intervals(record, done, around.fleet, cheapest(prices), left_tokens(record, done)),
        fairness=None if trace.tenant is None else contract.fairness_of(record, trace.tenant, trace.tenants),
    )


def cheapest(prices: Iterable[GpuPrice]) -> dict[str, float]:
    """Dollars per gpu-hour by gpu, where any price is known."""
    found: dict[str, float] = {}
    for price in prices:
        usd = price.price_usd_per_gpu_hour
        found[price.gpu] = min(usd, found.get(price.gpu, usd))
    return found


def _models(around: Around, model: ModelArchitecture) -> list[ModelArchitecture]:
    """What each group serves."""
    return [
        catalog.model(group.replica.deployment.model) if group.is_smaller_model else model
        for group in around.fleet.groups
    ]


def _judged(
    trace: Trace,
    sent: Trace,
    around: Around,
    record: RunRecord,
    slo: Slo,
    how: How,
    peak_s: Window,
    seen_s: tuple[Floats | None, Floats | None],
    interval_s: float,
) -> tuple[Judged, Judged]:
    """The whole run and its peak against the promise and against the requests alone."""
    fleet, apart = around.fleet, slo.gaps_apart_in(has_lane=around.lane is not None)
    low, high = (
        simulator.replay(
            sent,
            _at(fleet, slow=slow),
            peak_window_s=peak_s,
            # Gaps are counted class by class along with telemetry.
            telemetry_interval_s=interval_s if apart else None,
            world=around.world(),
        )
        for slow in (False, True)
    )
    prefill_fraction = prefill_fraction_in(record, peak_s)

    def judged(window_s: Window | None) -> Judged:
        found = contract.diagnose(
            answered(around.waiting_for(record)),
            alone(trace, fleet, record.replica, window_s),
            how.limits,
            mixed=len(fleet.groups) > 1,
            window_s=window_s,
            prefill_fraction=prefill_fraction,
            slot_counts=_slots(fleet),
            client_ttft_s=_waiting(around, seen_s[0]),
            client_e2e_s=_waiting(around, seen_s[1]),
        )

        def judge(part: Slo, everybody: bool) -> tuple[SloResult, ...]:
            of = (lambda run: run) if everybody else around.waiting_for
            return contract.judge(
                of(record),
                part,
                peak_only=window_s is not None,
                window_s=window_s,
                low=of(low),
                high=of(high),
                first_token_factor=max(group.replica.band.first_token_factor for group in fleet.groups),
            )

        promise = judge(slo, True) if around.lane is None else contract.judged_in_parts(slo, judge)
        start_s, end_s = window_s or (-np.inf, np.inf)
        count = int(((trace.arrival_s >= start_s) & (trace.arrival_s < end_s)).sum())
        return Judged(slo=promise, diagnosis=found, request_count=count)

    return judged(None), judged(peak_s)


def _waiting(around: Around, seen_s: Floats | None) -> Floats | None:
    """What clients of requests that somebody waits for saw."""
    return seen_s if seen_s is None or around.in_lane is None else seen_s[~around.in_lane]


def _slots(fleet: Fleet) -> list[int]:
    """Sequence slots of each replica."""
    return [
        group.replica.deployment.engine.max_sequence_count for group in fleet.groups for _ in range(group.replica_count)
    ]


def _at(fleet: Fleet, *, slow: bool) -> Fleet:
    """The fleet at one end of the error band of its step time."""

    def scaled(group: ReplicaGroup) -> ReplicaGroup:
        factor = group.replica.band.step_time_factor
        step_time = performance.scaled(group.replica.step_time, factor if slow else 1.0 / factor)
        return replace(group, replica=replace(group.replica, step_time=step_time))

    return replace(fleet, groups=tuple(scaled(group) for group in fleet.groups))


def _seen_by_client(trace: Trace, growth: float) -> tuple[Floats | None, Floats | None]:
    """TTFT and E2E as the log says them, request by request."""
    if growth != 1.0:
        raise BadInput.at("--as-logged", "the demand is grown, so it is not what was logged", "set growth to 1")
    observed = trace.observed
    ttft_s, e2e_s = (None, None) if observed is None else (observed.ttft_s, observed.e2e_s)
    if ttft_s is None and e2e_s is None:
        raise BadInput.at("--as-logged", "the demand has no times that clients saw", "give a log with TTFT or latency")
    return ttft_s, e2e_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that keep every limit on single requests."""

    request_count: int
    rate_per_s: float | None
    fraction: float | None
    clauses: tuple[str, ...]
    """The limits that were held against each request. ITL is judged over all gaps, never by request."""


def goodput(record: RunRecord, slo: Slo) -> Goodput:
    """Requests that finished within the limits of TTFT, TPOT and E2E.

    Of several limits on one metric and class the one at the highest quantile counts: that is what single requests may
    take.
    The rate is over the time from the first arrival to the last token.
    """
    tightest = {
        (target.metric, target.traffic_class): target
        for target in sorted(slo.latency, key=lambda each: each.quantile)
        if target.metric != "itl"
    }
    good = record.status == Status.FINISHED
    for target in tightest.values():
        time_s = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}[target.metric]
        # A request without that time (no second token, no output) has nothing to be late with.
        good &= ~(record.of_class(target.traffic_class) & (time_s > target.limit_s))
    count, total = int(good.sum()), len(good)
    return Goodput(
        request_count=count,
        rate_per_s=count / record.span_s if record.span_s > 0 else None,
        fraction=count / total if total else None,
        clauses=tuple(target.name for target in tightest.values()),
    )
