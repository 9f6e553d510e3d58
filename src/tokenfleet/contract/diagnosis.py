"""Says what holds a fleet up, from what happened to its requests: prefill, decode, KV memory, slots, or the client.

TTFT and ITL are *up* when they reach a multiple of what the same requests took alone. TTFT up while requests wait for
KV blocks (or slots) and compute has room: KV (or slots). Else TTFT up with flat ITL: prefill; ITL up with flat TTFT:
decode, or, where prefill owns the busy time, prompts that share the steps; both up: the phase that owns it. Nothing
up, but the client saw far more than the fleet took: the client, or the CPU in front of the fleet. TTFT up, most of it
spent before the scheduler knew of the request: the front end, whatever the gpu does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tokenfleet.contract.endings import refused_by
from tokenfleet.contract.quantile import histogram_quantile, order_statistic
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord, Status
from tokenfleet.domain.trace import Floats
from tokenfleet.domain.world import ReplicaState

Verdict = Literal[
    "fine",
    "prefill",
    "decode",
    "prefill_and_decode",
    "shared_steps",
    "kv",
    "sequence_slots",
    "front_end",
    "client",
    "unknown",
]
Alarm = Literal["none", "warning", "emergency", "unknown"]
_NEARBY: Final = (-0.1, -0.08, -0.06, -0.04, -0.02, 0.0, 0.02, 0.04, 0.06, 0.08, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisLimits:
    """Where flat ends and trouble begins; every figure is meant to be set."""

    ttft_quantile: float = 0.95
    itl_quantile: float = 0.5
    """The median: prompts that share a few steps with decodes lengthen the slowest gaps of a healthy engine, too."""
    ttft_up_factor: float = 3.0
    """TTFT is up from this multiple of the same requests alone on."""
    itl_up_factor: float = 3.0
    client_up_factor: float = 2.0
    """The client is slow from this multiple of what the fleet took on."""
    waiting_warning_count: int = 10
    """More waiting requests than this on one replica are a warning."""
    waiting_emergency_count: int = 50
    kv_full_fraction: float = 0.9
    """Blocks in use from which on a replica counts as full: the next prompt needs several at once."""
    held_fraction: float = 0.5
    """Share of the requests in the longest queues that must lack KV blocks (or slots) for these to be the cause."""
    phase_fraction: float = 0.6
    """A phase that takes this share of the busy time owns the compute; below it, compute is free for the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A latency under load against the same requests alone; ``None`` where there is no sample, or no end."""

    quantile: float
    loaded_s: float | None
    alone_s: float | None
    up: bool | None
    """Also where the quantile under load falls among those that never came: no latency is longer."""
    never_fraction: float = 0.0
    """Of the requests compared, the share whose clients gave up before it came."""

    @property
    def factor(self) -> float | None:
        """How many times slower than alone."""
        return _ratio(self.loaded_s, self.alone_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterPreemption:
    """What became of preempted sequences."""

    swap_count: int
    """How often their KV went to host memory."""
    recomputed_tokens: int
    """Computed again the other times: what no prefix cache had kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found, and the figures it rests on."""

    verdict: Verdict
    alarm: Alarm
    ttft: Against
    itl: Against
    client_ttft: Against | None
    client_e2e: Against | None
    waiting_peak_count: int | None
    """Most requests that waited at one sampled moment on one replica."""
    waiting_peak_replica: int | None
    waiting_elsewhere_count: int | None
    """Most that waited at that moment on any other replica that was ready; ``None`` where there was none."""
    queued_fraction: float | None
    """Share of sampled moments and replicas with somebody waiting."""
    kv_held_fraction: float | None
    """Of the requests in the longest queues (half of the longest or more), the share that waited while KV memory was
    full; ``None`` when nobody waited."""
    slots_held_fraction: float | None
    """The same while every sequence slot was taken; ``None`` when unknown or nobody waited."""
    busy_fraction: float | None
    """Share of the replicas' time in which a step ran, over the whole run."""
    prefill_fraction: float | None
    """Share of the busy time that went to prefill, where it was tight."""
    front_end_fraction: float | None
    """Share of the time to first token, over all requests, that passed before the scheduler knew of them."""
    tail_gap_s: float | None
    """p99 of the token gaps."""
    preemption_count: int
    after_preemption: AfterPreemption | None
    """``None`` where nobody knows."""
    refused_by: Mapping[str, int]
    """Requests that nobody served, by reason: a name of :class:`Status` in small letters; only those that occur."""
    lost_count: int
    """Requests lost with their replica."""
    timed_out_count: int
    """Requests whose clients gave up, before the first token or after it."""
    sent_again_count: int
    """Requests that came back after a loss, a refusal or a time-out; their first tokens are not compared."""

    @property
    def refused_count(self) -> int:
        """Requests that nobody served, for whatever reason."""
        return sum(self.refused_by.values())


class Times(Protocol):
    """First tokens and gaps of some requests."""

    @property
    def ttft_s(self) -> Floats:
        """Of each request; NaN where there was no token."""

    @property
    def gaps(self) -> GapHistogram:
        """Of all of them."""


def diagnose(
    record: RunRecord,
    alone: Times,
    limits: DiagnosisLimits | None = None,
    *,
    mixed: bool = False,
    window_s: tuple[float, float] | None = None,
    prefill_fraction: float | None = None,
    slot_counts: Sequence[int] | None = None,
    client_ttft_s: Floats | None = None,
    client_e2e_s: Floats | None = None,
) -> Diagnosis:
    """Finds the cause of slow answers, simulated or measured.

    Args:
        record: What happened under load.
        alone: The same requests, or a fair sample of them, one at a time on idle replicas of the same kind.
        limits: Where flat ends; the defaults when left out.
        mixed: Replicas are of several kinds, so of neighbouring quantiles the one of the median ratio is taken.
        window_s: Look at requests that arrive, and moments that lie, inside; needs ``record.peak_gaps`` of it.
        prefill_fraction: Share of their work that was prefill where it was tight; left out, that of the whole record.
        slot_counts: Sequence slots of each replica, in the order of ``record.telemetry``.
        client_ttft_s: TTFT that the client saw of each request in seconds, NaN where unknown.
        client_e2e_s: The same to the last token.

    Returns:
        The verdict with its figures; ``unknown`` when no request got a token.

    Raises:
        ValueError: A window without its gaps.
    """
    bounds, chosen, gaps = limits or DiagnosisLimits(), _chosen(record, window_s), _gaps(record, window_s)
    ttft, itl = _up(record, alone, bounds, chosen, gaps, mixed=mixed)
    queue, front_end = _queue(record, bounds, window_s, slot_counts), _front_end(record, chosen)
    work = _prefill_fraction(record.busy) if prefill_fraction is None else prefill_fraction
    seen = _client(client_ttft_s, record.ttft_s, chosen, bounds), _client(client_e2e_s, record.e2e_s, chosen, bounds)
    return Diagnosis(
        verdict=_verdict(ttft, itl, queue, work, bounds, front_end=front_end, seen=seen),
        alarm=_alarm(queue.most, bounds),
        ttft=ttft,
        itl=itl,
        client_ttft=seen[0],
        client_e2e=seen[1],
        waiting_peak_count=queue.most,
        waiting_peak_replica=queue.replica,
        waiting_elsewhere_count=queue.elsewhere,
        queued_fraction=queue.queued,
        kv_held_fraction=queue.kv_held,
        slots_held_fraction=queue.slots_held,
        busy_fraction=busy_fraction(record),
        prefill_fraction=work,
        front_end_fraction=front_end,
        tail_gap_s=histogram_quantile(gaps, 0.99),
        preemption_count=int(record.preemption_count[chosen].sum(dtype=np.int64)),
        after_preemption=_after_preemption(record, chosen),
        refused_by=refused_by(record.status[chosen]),
        lost_count=int((record.status[chosen] == Status.LOST).sum()),
        timed_out_count=int((record.status[chosen] == Status.TIMED_OUT).sum()),
        sent_again_count=int((chosen & _sent_again(record)).sum()),
    )


def _after_preemption(record: RunRecord, chosen: npt.NDArray[np.bool_]) -> AfterPreemption | None:
    if record.ledger is None:
        return None
    return AfterPreemption(
        swap_count=int(record.ledger.swap_count[chosen].sum(dtype=np.int64)),
        recomputed_tokens=int(record.ledger.recomputed_tokens[chosen].sum()),
    )


def _gaps(record: RunRecord, window_s: tuple[float, float] | None) -> GapHistogram:
    if window_s is None:
        return record.gaps
    if record.peak_gaps is None:
        raise ValueError("the record has no gaps of the window")
    return record.peak_gaps


def _up(
    record: RunRecord,
    alone: Times,
    limits: DiagnosisLimits,
    chosen: npt.NDArray[np.bool_],
    gaps: GapHistogram,
    *,
    mixed: bool,
) -> tuple[Against, Against]:
    """TTFT and ITL against the requests alone.

    A first token counts where its request was sent once; one that a client gave up waiting for never came.
    """
    never = chosen & (record.status == Status.TIMED_OUT) & np.isnan(record.first_token_s)
    once = chosen & (~_sent_again(record) | never)
    loaded_s = _known(np.where(never, np.inf, record.ttft_s), once if once.any() else chosen)
    never_fraction = _ratio(int(never.sum()), len(loaded_s)) or 0.0
    alone_s = _known(alone.ttft_s, np.ones(len(alone.ttft_s), dtype=np.bool_))

    def ttft(quantile: float) -> Against:
        values = order_statistic(loaded_s, quantile), order_statistic(alone_s, quantile)
        against = held_against(*values, quantile, limits.ttft_up_factor)
        came = values[0] is not None or not len(loaded_s)
        return replace(against, up=against.up if came else True, never_fraction=never_fraction)

    def itl(quantile: float) -> Against:
        values = histogram_quantile(gaps, quantile), histogram_quantile(alone.gaps, quantile)
        return held_against(*values, quantile, limits.itl_up_factor)

    compared = _typical if mixed else _at
    return compared(ttft, limits.ttft_quantile), compared(itl, limits.itl_quantile)


def _sent_again(record: RunRecord) -> npt.NDArray[np.bool_]:
    """Requests whose clients had to come back: what made them wait was not the replica that answered."""
    if record.turmoil is None:
        return np.zeros(len(record.arrival_s), dtype=np.bool_)
    again: npt.NDArray[np.bool_] = record.turmoil.attempt_count > 1
    return again


def _at(against: Callable[[float], Against], quantile: float) -> Against:
    return against(quantile)


def _typical(against: Callable[[float], Against], quantile: float) -> Against:
    """The comparison with the median ratio, of those at quantiles nearby.

    A quantile at which one kind of replica ends and the next begins compares two kinds as soon as their shares differ
    by a hair.
    """
    nearby = [round(quantile + step, 2) for step in _NEARBY if quantile + step < 1.0]
    found = [(np.inf if each.factor is None else each.factor, each.quantile, each) for each in map(against, nearby)]
    known = sorted(each for each in found if each[2].up is not None)
    return known[len(known) // 2][2] if known else against(quantile)


@dataclass(frozen=True, slots=True)
class _Queue:
    most: int | None = None
    replica: int | None = None
    elsewhere: int | None = None
    queued: float | None = None
    kv_held: float | None = None
    slots_held: float | None = None


def _queue(
    record: RunRecord,
    limits: DiagnosisLimits,
    window_s: tuple[float, float] | None,
    slot_counts: Sequence[int] | None,
) -> _Queue:
    """Who waited, and for what, at the sampled moments."""
    gauges = record.telemetry
    if gauges is None:
        return _Queue()
    start_s, end_s = window_s or (-np.inf, np.inf)
    inside = (gauges.time_s >= start_s) & (gauges.time_s <= end_s)
    waiting = gauges.waiting[inside]
    if not waiting.size:
        return _Queue()
    place = int(np.argmax(waiting))
    sample, replica = divmod(place, waiting.shape[1])
    others = np.arange(waiting.shape[1]) != replica
    if gauges.state is not None:
        others &= gauges.state[inside][sample] == ReplicaState.READY
    most = int(waiting.flat[place])
    # In a healthy engine, too, an arrival waits for the next step to begin; only the longest queues tell a cause.
    long = np.where(2 * waiting >= max(most, 1), waiting, 0)
    total = int(long.sum(dtype=np.int64))
    full = gauges.kv_used_fraction[inside] >= limits.kv_full_fraction
    taken = None if slot_counts is None else gauges.running[inside] >= np.asarray(slot_counts)
    return _Queue(
        most=most,
        replica=replica,
        elsewhere=int(waiting[sample][others].max()) if others.any() else None,
        queued=int((waiting > 0).sum()) / waiting.size,
        kv_held=int(long[full].sum(dtype=np.int64)) / total if total else None,
        slots_held=int(long[taken].sum(dtype=np.int64)) / total if total and taken is not None else None,
    )


def _verdict(
    ttft: Against,
    itl: Against,
    queue: _Queue,
    prefill_fraction: float | None,
    limits: DiagnosisLimits,
    *,
    front_end: float | None,
    seen: tuple[Against | None, Against | None],
) -> Verdict:
    if ttft.up is None and itl.up is None:
        return "unknown"
    if ttft.up:
        if front_end is not None and front_end >= limits.held_fraction:
            return "front_end"
        return _behind(itl, queue, prefill_fraction, limits)
    if itl.up:
        return "shared_steps" if _prefill_owns(prefill_fraction, limits) else "decode"
    return "client" if _slow(*seen) else "fine"


def _prefill_owns(prefill_fraction: float | None, limits: DiagnosisLimits) -> bool:
    return prefill_fraction is not None and prefill_fraction >= limits.phase_fraction


def _behind(itl: Against, queue: _Queue, prefill_fraction: float | None, limits: DiagnosisLimits) -> Verdict:
    """What holds first tokens back."""
    prefill_owns = _prefill_owns(prefill_fraction, limits)
    if not prefill_owns and queue.kv_held is not None and queue.kv_held >= limits.held_fraction:
        return "kv"
    if not prefill_owns and queue.slots_held is not None and queue.slots_held >= limits.held_fraction:
        return "sequence_slots"
    if not itl.up or prefill_owns:
        return "prefill"
    decode_owns = prefill_fraction is not None and prefill_fraction <= 1.0 - limits.phase_fraction
    return "decode" if decode_owns else "prefill_and_decode"


def _alarm(waiting_count: int | None, limits: DiagnosisLimits) -> Alarm:
    if waiting_count is None:
        return "unknown"
    if waiting_count > limits.waiting_emergency_count:
        return "emergency"
    return "warning" if waiting_count > limits.waiting_warning_count else "none"


def _chosen(record: RunRecord, window_s: tuple[float, float] | None) -> npt.NDArray[np.bool_]:
    if window_s is None:
        return np.ones(len(record.arrival_s), dtype=np.bool_)
    return (record.arrival_s >= window_s[0]) & (record.arrival_s < window_s[1])


def _known(values: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
    return values[chosen & ~np.isnan(values)]


def _client(
    seen_s: Floats | None, served_s: Floats, chosen: npt.NDArray[np.bool_], limits: DiagnosisLimits
) -> Against | None:
    """What the client saw against what the fleet took, over requests for which both are known."""
    if seen_s is None:
        return None
    both = chosen & np.isfinite(seen_s) & np.isfinite(served_s)
    quantile = limits.ttft_quantile
    return held_against(
        order_statistic(seen_s[both], quantile),
        order_statistic(served_s[both], quantile),
        quantile,
        limits.client_up_factor,
    )


def _slow(*clients: Against | None) -> bool:
    return any(each is not None and each.up for each in clients)


def busy_fraction(record: RunRecord) -> float | None:
    """Share of the time of replicas that could serve in which a step ran; ``None`` where there was no such time."""
    return _ratio(record.busy.prefill_s + record.busy.decode_s, _serving_s(record))


def _serving_s(record: RunRecord) -> float:
    """Replica-seconds in which somebody could be served: ready, draining or stopping."""
    if record.turmoil is None:
        return record.replica_count * record.end_s
    serving = [int(state) for state in (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING)]
    return float(record.turmoil.state_s[:, serving].sum())


def _front_end(record: RunRecord, chosen: npt.NDArray[np.bool_]) -> float | None:
    """Share of the time to first token that passed in the front end."""
    if record.ready_s is None:
        return None
    served = chosen & np.isfinite(record.ttft_s) & np.isfinite(record.ready_s)
    before_s = (record.ready_s - record.arrival_s)[served].sum()
    return _ratio(float(before_s), float(record.ttft_s[served].sum()))


def _prefill_fraction(busy: BusyTime) -> float | None:
    return _ratio(busy.prefill_s, busy.prefill_s + busy.decode_s)


def held_against(loaded_s: float | None, alone_s: float | None, quantile: float, up_factor: float) -> Against:
    """A latency at a quantile, in seconds, against that of the same requests alone; up from the factor on."""
    factor = _ratio(loaded_s, alone_s)
    return Against(
        quantile=quantile, loaded_s=loaded_s, alone_s=alone_s, up=None if factor is None else factor >= up_factor
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None or whole <= 0.0 else part / whole
