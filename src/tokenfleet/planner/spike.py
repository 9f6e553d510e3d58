"""An event that is known beforehand: what its window asks for, the fleet it takes, what to warm, when it is over."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import PlanQuestion, Reason, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.survival import Recovery
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Happening, World
from tokenfleet.planner import words
from tokenfleet.planner.answer import cheapest
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.letting_go import JUDGED_S, LetGo, let_go, without_added
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.recovery import settled
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import FOLLOWING_REQUESTS, Traffic, cut, stretch
from tokenfleet.planner.utilization import full_replicas
from tokenfleet.planner.verdict import Verdict
from tokenfleet.planner.warming import Warmed, warmed
from tokenfleet.planner.work import DETAIL_REQUESTS

_AROUND_S = 600.0
SAMPLE_S = 1.0
Longs = npt.NDArray[np.int64]
_MOST_TIMES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A surge that is known beforehand."""

    start_s: float
    """Second of the trace."""
    length_s: float
    factor: float
    """Demand of the window against the usual, above 1."""
    shape: workload.Shape = "flat"

    @property
    def demand_end_s(self) -> float:
        """When its last request has arrived."""
        return self.start_s + self.length_s * (workload.FRONT_FRACTION if self.shape == "front" else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """What the window asks for, and what the formulas people use say of it."""

    request_count: int
    usual_request_count: int
    input_tokens: int
    output_tokens: int
    mean_tokens_per_s: float
    full_tokens_per_s: float | None
    """Tokens per second that the usual carrying replicas get through with a queue that never empties; ``None`` where
    the demand has too few requests to say."""
    work_s: float | None
    """Tokens of the window over that rate: the plain formula."""
    formula_carrying_count: int | None
    """Tokens of the busiest minute, the event in it, over what one such replica gets through in a minute."""
    kv_at_once_bytes: float
    """KV cache if every request of the window were there at once, on all gpus."""
    kv_pool_bytes: float
    """KV cache of the usual carrying replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endured:
    """The event on one fleet, by replay."""

    replica_count: int
    kept: bool
    slo: tuple[SloResult, ...]
    """Requests that arrive in the window of the event."""
    waiting_peak_count: int
    """Most requests that wait at once, on all replicas."""
    settled: Recovery
    """After the last request of the event, until arrivals are served as promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSpike:
    """What an event takes."""

    event: Event
    budget: TokenBudget
    usual: Endured
    """The planned fleet with all its replicas, nothing added."""
    needed: Sized | None
    """The fleet of the same kind that keeps the promise through the event; ``None`` when no number does."""
    reasons: tuple[Reason, ...]
    """Why there is none."""
    endured: Endured | None
    """The event on the carrying replicas of that fleet."""
    late: Endured | None
    """The event on all replicas of that fleet, those that were added asked for only when it begins."""
    let_go: LetGo | None
    """When those who carry what the usual ones cannot may go; ``None`` where there are none, or nobody knows when."""
    warm: Warmed | None
    """What warming prefixes does; ``None`` where there is no fleet, or the trace shows no shared prefix."""
    added_replica_count: int
    added_gpu_count: int
    utilization_cap_fraction: float | None = None
    """The cap that the needed fleet keeps at the peak of the event, as the usual one does in usual times."""


def known_spike(
    question: PlanQuestion,
    trace: Trace,
    usual: Sized,
    event: Event,
    *,
    ready_after_s: float | None = None,
    progress: Progress | None = None,
) -> KnownSpike:
    """Sizes the fleet of ``usual``'s kind for an event, and says what the usual one would make of it.

    Args:
        question: The promise, what may be lost, the router.
        trace: The usual demand.
        usual: The fleet planned for it.
        event: When, how long, how much.
        ready_after_s: How long a start takes, to see what asking too late does; ``None``: unknown.
        progress: Told what is being tried.

    Raises:
        BadInput: an event outside of the trace.
    """
    surged = with_event(trace, event)
    traffic, longer = around(surged, event), around(surged, event, following_count=FOLLOWING_REQUESTS)
    replays = Replays.of(question)
    reporter = Reporter(progress)
    reporter.say("verifying", f"the event on {words.fleet(usual.replica, usual.replica_count)}", 0.1)
    as_is = _endured_by(replays, (traffic, longer), event, usual.replica, usual.replica_count)
    narrowed = replace(question, candidates=(usual.replica,), rejected=(), vary_step_tokens=False)
    found = cheapest(narrowed, traffic.trace, progress=progress)
    needed = None if found.sized is None else all_through(replays, traffic, question, found.sized)
    carried = warm = late = gone = None
    if needed is not None:
        late = _asked_late(replays, (traffic, longer), event, usual, needed, ready_after_s)
        carried = _endured_by(replays, (traffic, longer), event, needed.replica, needed.carrying_count)
        gone = _let_go(replays, longer, event, usual, needed, carried)
        warm = warmed(replays, traffic, needed.replica, needed.carrying_count)
    added = max(0, needed.replica_count - usual.replica_count) if needed else 0
    return KnownSpike(
        event=event,
        budget=_budget(replays, trace, surged, usual, event),
        usual=as_is,
        needed=needed,
        reasons=found.reasons,
        endured=carried,
        late=late,
        let_go=gone,
        warm=warm,
        added_replica_count=added,
        added_gpu_count=added * usual.replica.deployment.layout.gpu_count,
        utilization_cap_fraction=question.utilization_cap_fraction,
    )


def with_event(trace: Trace, event: Event) -> Trace:
    """As :func:`event_with_rows`, the demand alone."""
    return event_with_rows(trace, event)[0]


def event_with_rows(trace: Trace, event: Event) -> tuple[Trace, Longs]:
    """The demand with the event in it, and the row of the usual one whose copy each request is.

    Raises:
        BadInput: an event outside of the trace.
    """
    if not 0.0 <= event.start_s < trace.duration_s:
        what = f"{event.start_s:g} s is not within the demand, which lasts {trace.duration_s:g} s"
        raise BadInput.at("at", what, "choose a time inside")
    return workload.surge_with_rows(
        trace, start_s=event.start_s, length_s=event.length_s, factor=event.factor, shape=event.shape
    )


def all_through(replays: Replays, traffic: Traffic, question: PlanQuestion, sized: Sized) -> Sized | None:
    """As many replicas as keep the promise in the window of the event, not only in its busiest minute.

    Args:
        replays: Judges.
        traffic: What comes to them, and the window.
        question: What may be lost.
        sized: Enough for the busiest minute and over all.

    Returns:
        ``None`` where eight times as many are too few, or no spare replicas survive what is asked for.
    """

    def enough(more: int) -> bool:
        return replays.verdict(traffic, sized.replica, sized.carrying_count + more - 1).kept

    more = smallest_enough(enough, 1, _MOST_TIMES * sized.carrying_count)
    carrying = sized.carrying_count + (more or 1) - 1
    spare = spare_replicas(question, sized.replica, carrying)
    if more is None or spare is None:
        return None
    return replace(sized, carrying_count=carrying, spare_count=max(spare, sized.spare_count))


def around(surged: Trace, event: Event, *, following_count: int = 0) -> Traffic:
    """The event with what comes ten minutes before and after it; its window is what is judged.

    Args:
        surged: The demand with the event in it.
        event: The event.
        following_count: Requests after it, where ten minutes have fewer: a queue may take longer to drain.
    """
    return around_with_rows(surged, event, following_count=following_count)[0]


def around_with_rows(surged: Trace, event: Event, *, following_count: int = 0) -> tuple[Traffic, slice]:
    """The same, and the rows of ``surged`` that it is."""
    start_s, end_s = event.start_s, event.start_s + event.length_s
    times = [start_s - _AROUND_S, end_s, end_s + _AROUND_S]
    first, ended, last = (int(row) for row in np.searchsorted(surged.arrival_s, times))
    last = max(last, min(surged.request_count, ended + following_count))
    return cut(Traffic(surged, (start_s, end_s)), first, last), slice(first, last)


def _asked_late(
    replays: Replays,
    demand: tuple[Traffic, Traffic],
    event: Event,
    usual: Sized,
    needed: Sized,
    ready_after_s: float | None,
) -> Endured | None:
    added = tuple(range(usual.replica_count, needed.replica_count))
    if not added or ready_after_s is None:
        return None
    ready = Happening(
        time_s=demand[0].window_s[0] + ready_after_s, kind="ready", replicas=added, reason="asked for late"
    )
    world = World(happenings=(ready,), absent=added)
    return _endured_by(replays, demand, event, needed.replica, needed.replica_count, world)


def _let_go(
    replays: Replays, longer: Traffic, event: Event, usual: Sized, needed: Sized, carried: Endured
) -> LetGo | None:
    count = needed.carrying_count
    if count <= usual.carrying_count:
        return None

    def replay(at_s: float | None) -> RunRecord:
        world = without_added(replays.door, at_s, usual.carrying_count, count)
        return replays.run(longer, needed.replica, count, world=world)

    end_s = ended_s(longer, event)
    return let_go(replay, replays.slo, ended_s=end_s, settled_after_s=carried.settled.after_s)


def ended_s(traffic: Traffic, event: Event) -> float:
    """When the last request of the event has arrived, on the clock of the traffic around it."""
    return traffic.window_s[0] + event.demand_end_s - event.start_s


def _endured_by(
    replays: Replays,
    demand: tuple[Traffic, Traffic],
    event: Event,
    replica: ReplicaPhysics,
    count: int,
    world: World | None = None,
) -> Endured:
    traffic, longer = demand
    record = replays.run(traffic, replica, count, telemetry_interval_s=SAMPLE_S, world=world)
    waiting = record.telemetry.waiting.sum(axis=1) if record.telemetry else np.zeros(0)
    return endured(
        replays.judged(traffic, record),
        replays.slo,
        traffic,
        event,
        record,
        int(waiting.max(initial=0)),
        longer=lambda: replays.run(longer, replica, count, world=world),
    )


def endured(
    verdict: Verdict,
    slo: Slo,
    traffic: Traffic,
    event: Event,
    record: RunRecord,
    waiting_peak_count: int,
    *,
    longer: Callable[[], RunRecord],
) -> Endured:
    """What a replay of an event comes to.

    Args:
        verdict: What is promised, judged.
        slo: The promise.
        traffic: The event with what comes around it; its window is that of the event.
        event: The event itself.
        record: What became of the requests.
        waiting_peak_count: Most of them that waited at once.
        longer: Replays with more of what follows the event, to see when it is over.
    """
    return Endured(
        replica_count=record.replica_count,
        kept=verdict.kept,
        slo=verdict.peak,
        waiting_peak_count=waiting_peak_count,
        settled=settled(record, slo, ended_s(traffic, event), window_s=JUDGED_S, longer=longer),
    )


def _budget(replays: Replays, trace: Trace, surged: Trace, usual: Sized, event: Event) -> TokenBudget:
    window_s = event.start_s, event.start_s + event.length_s
    requests, inputs, outputs = _asked(surged, window_s)
    full = _full_tokens_per_s(replays, trace, usual)
    busiest = _busiest_minute_tokens(surged) / 60.0
    replica = usual.replica
    per_token = replica.memory.kv_bytes_per_token * replica.deployment.layout.gpu_count
    return TokenBudget(
        request_count=requests,
        usual_request_count=_asked(trace, window_s)[0],
        input_tokens=inputs,
        output_tokens=outputs,
        mean_tokens_per_s=(inputs + outputs) / event.length_s,
        full_tokens_per_s=full,
        work_s=None if full is None else (inputs + outputs) / full,
        formula_carrying_count=None if full is None else math.ceil(usual.carrying_count * busiest / full),
        kv_at_once_bytes=float(inputs + outputs) * per_token,
        kv_pool_bytes=float(replica.memory.kv_capacity_tokens) * per_token * usual.carrying_count,
    )


def _full_tokens_per_s(replays: Replays, trace: Trace, usual: Sized) -> float | None:
    detail = stretch(Traffic(trace, workload.peak_window(trace)), DETAIL_REQUESTS)
    full = full_replicas(replays, detail, usual)
    if full is None:
        return None
    tokens = detail.trace.input_tokens.sum(dtype=np.int64) + detail.trace.output_tokens.sum(dtype=np.int64)
    return full.rate_per_s * float(tokens) / detail.trace.request_count


def _asked(trace: Trace, window_s: tuple[float, float]) -> tuple[int, int, int]:
    """Requests, input and output tokens that arrive in a window."""
    inside = (trace.arrival_s >= window_s[0]) & (trace.arrival_s < window_s[1])
    inputs, outputs = (int(each[inside].sum(dtype=np.int64)) for each in (trace.input_tokens, trace.output_tokens))
    return int(inside.sum()), inputs, outputs


def _busiest_minute_tokens(trace: Trace) -> float:
    tokens = trace.input_tokens.astype(np.float64) + trace.output_tokens
    return float(np.bincount((trace.arrival_s // 60.0).astype(np.int64), weights=tokens).max())
