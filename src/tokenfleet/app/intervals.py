"""What the replicas of a simulation did between two samples: time, tokens, waits, money.

Counters of the replay are taken apart by interval. What a replica was busy for is known to the picosecond; what bounds
that time is told from the mean steps of the interval, with and without prefill, by the terms of the step time model.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import catalog, contract, performance
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Floats, Trace
from tokenfleet.domain.world import HOLDS_GPUS, ReplicaState

BOUNDS: Final = ("compute", "bandwidth", "communication", "overhead")
"""What a step waits for, as in :class:`tokenfleet.domain.replica.StepShares`."""
SERVES: Final = (ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING)
"""States in which a replica may have a batch."""
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Arrays of shape (sample, replica): of the interval that ends with each sample."""

    interval_s: float
    prefill_tokens: Counts
    decode_tokens: Counts
    """With drafts that were kept."""
    preemption_count: Counts
    swap_count: Counts
    """Those of them that moved the KV to host memory."""
    recomputed_tokens: Counts
    """Computed again after preemptions."""
    swapped_bytes: Counts
    """KV that each of its gpus moved to host memory and back."""
    busy_fraction: Floats
    """Share of the time in which a step ran: what a dashboard shows as the use of a gpu."""
    bound_fraction: Mapping[str, Floats]
    """The same time by what it waits for, one array for each of :data:`BOUNDS`; together they are ``busy_fraction``."""
    held_s: Floats
    """Seconds in which it held gpus."""
    serving_s: Floats
    """Seconds in which it could have a batch: it was ready, or finished what it had."""

    @property
    def bound_by(self) -> npt.NDArray[np.int64]:
        """Place in :data:`BOUNDS` of what most of the time waits for; -1 where no step ran."""
        most = np.stack([self.bound_fraction[name] for name in BOUNDS]).argmax(axis=0)
        return np.where(self.busy_fraction > 0.0, most, -1)

    def of_fleet(self, fraction: Floats) -> Floats:
        """A share of each replica's time as one of the time in which replicas served; NaN where none did.

        A replica that fails has its last step counted whole, which is time that it served, too.
        """
        served_s = np.maximum(self.serving_s.sum(axis=1), self.busy_fraction.sum(axis=1) * self.interval_s)
        spent_s = fraction.sum(axis=1) * self.interval_s
        share: Floats = np.where(served_s > 0.0, spent_s / np.where(served_s > 0.0, served_s, 1.0), np.nan)
        return share


def intervals_of(record: RunRecord, interval_s: float, fleet: Fleet, models: Sequence[ModelArchitecture]) -> Intervals:
    """Take the counters of a run apart by interval.

    Args:
        record: The run, sampled every ``interval_s``.
        interval_s: Seconds.
        fleet: What served it.
        models: What each of its groups serves.

    Raises:
        ValueError: a record without telemetry.
    """
    if record.telemetry is None:
        raise ValueError("the run sampled no gauges")
    done = record.telemetry.done
    counted = {field.name: np.diff(getattr(done, field.name), axis=0, prepend=0) for field in fields(done)}
    # A replica that fails has its last step counted whole, beyond the moment of the failure.
    busy = np.clip(counted["busy_s"] / interval_s, 0.0, 1.0)
    return Intervals(
        interval_s=interval_s,
        prefill_tokens=counted["prefill_tokens"],
        decode_tokens=counted["decode_tokens"] + counted["kept_draft_tokens"],
        preemption_count=counted["preemption_count"],
        swap_count=counted["swap_count"],
        recomputed_tokens=counted["recomputed_tokens"],
        swapped_bytes=counted["swapped_block_count"] * _swap_block_bytes(fleet),
        busy_fraction=busy,
        bound_fraction=_bounds(counted, busy, fleet, models),
        held_s=_seconds_in(HOLDS_GPUS, record, interval_s, busy.shape),
        serving_s=_seconds_in(SERVES, record, interval_s, busy.shape),
    )


def _swap_block_bytes(fleet: Fleet) -> Counts:
    """Of each replica."""
    sizes = [group.replica.swap_block_bytes for group in fleet.groups]
    return np.repeat(np.array(sizes, dtype=np.int64), [group.replica_count for group in fleet.groups])


def _seconds_in(
    states: Collection[ReplicaState], record: RunRecord, interval_s: float, shape: tuple[int, ...]
) -> Floats:
    """Seconds of each interval that each replica was in one of some states."""
    if record.turmoil is None:
        return np.full(shape, interval_s)
    found, samples = np.zeros(shape), shape[0]
    for spell in record.turmoil.spells:
        if spell.state in states:
            end_s = min(spell.end_s, samples * interval_s)
            start, end = int(spell.start_s / interval_s), min(math.ceil(end_s / interval_s), samples)
            edges_s = np.arange(start, max(end, start) + 1) * interval_s
            inside_s = np.minimum(edges_s[1:], end_s) - np.maximum(edges_s[:-1], spell.start_s)
            found[start:end, spell.replica] += np.maximum(inside_s, 0.0)
    return found


def _bounds(
    counted: Mapping[str, Counts], busy: Floats, fleet: Fleet, models: Sequence[ModelArchitecture]
) -> dict[str, Floats]:
    """Shares of the busy time by what it waits for, replica group by replica group."""
    found = {name: np.zeros_like(busy) for name in BOUNDS}
    start = 0
    for group, model in zip(fleet.groups, models, strict=True):
        replicas = slice(start, start + group.replica_count)
        spent = _spent_s({name: values[:, replicas] for name, values in counted.items()}, group, model)
        whole = sum(spent.values(), np.zeros(1))
        # A step that began in an interval before is of the kind of the steps fixed there.
        moments = np.where(whole > 0.0, np.arange(len(busy))[:, None], 0)
        last = np.maximum.accumulate(moments, axis=0)
        for name in BOUNDS:
            share = spent[name] / np.where(whole > 0.0, whole, 1.0)
            found[name][:, replicas] = busy[:, replicas] * np.take_along_axis(share, last, axis=0)
        start += group.replica_count
    return found


def _spent_s(counted: Mapping[str, Counts], group: ReplicaGroup, model: ModelArchitecture) -> dict[str, Floats]:
    """Seconds by what they wait for, if all steps with prefill were alike, and all without."""
    steps = np.maximum(counted["step_count"], 1)
    mixed = counted["prefill_step_count"]
    chunk = counted["prefill_tokens"] / np.maximum(mixed, 1)
    pairs = counted["pair_count"] / np.maximum(mixed, 1)
    sequences, context = counted["decode_tokens"] / steps, counted["context_tokens"] / steps
    deployment = group.replica.deployment
    decoded = sequences * deployment.engine.step_token_count
    gpu = catalog.gpu(deployment.gpu)
    plain = performance.step_parts(
        model, gpu, deployment, tokens=np.maximum(decoded, 1.0), sequences=sequences, context_tokens=context
    )
    full = performance.step_parts(
        model,
        gpu,
        deployment,
        tokens=np.maximum(decoded + chunk, 1.0),
        sequences=sequences,
        context_tokens=context,
        pairs=pairs,
        prefill=True,
    )
    alone = np.maximum(counted["step_count"] - mixed, 0)
    return {name: np.maximum(mixed * full[name] + alone * plain[name], 0.0) for name in BOUNDS}


def serving(state: npt.NDArray[np.int8] | None, used: Floats) -> npt.NDArray[np.bool_]:
    """Which replicas could have a batch at each sample, or were in use all the same; shape (sample, replica).

    One that loads has neither a queue nor KV memory yet.
    """
    if state is None:
        return np.ones(used.shape, dtype=np.bool_)
    there: npt.NDArray[np.bool_] = np.isin(state, SERVES)
    return there | (used > 0.0)


def mean_of(values: Floats, there: npt.NDArray[np.bool_]) -> Floats:
    """Mean over the replicas that serve, at each sample; NaN where none does."""
    count = there.sum(axis=1)
    mean: Floats = np.where(count > 0, (values * there).sum(axis=1) / np.maximum(count, 1), np.nan)
    return mean


def in_interval(times_s: Floats, interval_s: float, samples: int) -> Counts:
    """The sample at the end of the interval in which each time lies."""
    # The last sample lies at or behind the last event, so rounding alone could point past the end.
    return np.clip(np.ceil(times_s / interval_s).astype(np.int64) - 1, 0, samples - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Waits in the queues of the schedulers: a row for each interval, replica and priority with somebody admitted."""

    time_s: Floats
    replica: npt.NDArray[np.int32]
    priority: npt.NDArray[np.int32] | None
    """``None`` where the traffic has no priorities."""
    scheduled_count: Counts
    mean_s: Floats
    longest_s: Floats


def waits_of(record: RunRecord, trace: Trace, interval_s: float) -> Waits:
    """How long the requests had waited that left the queues, by interval, replica and priority.

    Of requests served at their first attempt.

    Raises:
        ValueError: a record without a ledger.
    """
    if record.ledger is None or record.ready_s is None or record.telemetry is None:
        raise ValueError("a record without a ledger says nothing of queues")
    scheduled_s = record.ledger.scheduled_s
    known = np.flatnonzero(np.isfinite(scheduled_s) & np.isfinite(record.ready_s) & (record.replica >= 0))
    level = np.zeros(trace.request_count, dtype=np.int32) if trace.priority is None else trace.priority
    levels, place = np.unique(level[known], return_inverse=True)
    samples, replicas = record.telemetry.running.shape
    sample = in_interval(scheduled_s[known], interval_s, samples)
    cells, cell = np.unique(
        (sample * replicas + record.replica[known]) * len(levels) + place.reshape(-1), return_inverse=True
    )
    wait_s = scheduled_s[known] - record.ready_s[known]
    count = np.bincount(cell, minlength=len(cells))
    longest_s = np.zeros(len(cells))
    np.maximum.at(longest_s, cell, wait_s)
    most = max(len(levels), 1)
    return Waits(
        time_s=record.telemetry.time_s[cells // (most * replicas)],
        replica=(cells // most % replicas).astype(np.int32),
        priority=None if trace.priority is None else levels[cells % most].astype(np.int32),
        scheduled_count=count,
        mean_s=np.bincount(cell, weights=wait_s, minlength=len(cells)) / np.maximum(count, 1),
        longest_s=longest_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetIntervals:
    """The whole fleet by interval; arrays of shape (sample,)."""

    ready_count: Counts
    starting_count: Counts
    ended_counts: Mapping[str, Counts]
    """Requests that arrived in the interval and got no answer in the end: ``rejected_count``, ``lost_count``..."""
    usd: Floats | None
    """What the gpus held cost; ``None`` where a price is not known."""
    output_tokens: Counts
    """Those that left."""

    @property
    def usd_per_million_output_tokens(self) -> Floats | None:
        """The one over the other; NaN where no token left."""
        return None if self.usd is None else unit_price(self.usd, self.output_tokens)


def unit_price(usd: Floats, output_tokens: Counts | Floats) -> Floats:
    """Dollars per million tokens of each span; NaN where none left."""
    left = output_tokens > 0
    price: Floats = np.where(left, 1e6 * usd / np.where(left, output_tokens, 1), np.nan)
    return price


def left_tokens(record: RunRecord, done: Intervals) -> Counts:
    """Output tokens that left in each interval: those decoded, and first ones, which prefill yields."""
    firsts = record.first_token_s[np.isfinite(record.first_token_s)]
    samples = len(done.decode_tokens)
    first_count = np.bincount(in_interval(firsts, done.interval_s, samples), minlength=samples)
    tokens: Counts = done.decode_tokens.sum(axis=1) + first_count
    return tokens


def fleet_intervals(
    record: RunRecord, done: Intervals, fleet: Fleet, usd_per_gpu_hour: Mapping[str, float], output_tokens: Counts
) -> FleetIntervals:
    """What a fleet was, turned away and cost.

    Args:
        record: The run.
        done: Its intervals.
        fleet: What served it.
        usd_per_gpu_hour: By gpu, where known.
        output_tokens: Tokens that left in each interval, see :func:`left_tokens`.
    """
    telemetry = record.telemetry
    if telemetry is None:
        raise ValueError("the run sampled no gauges")
    samples, replicas = telemetry.running.shape
    state = telemetry.state
    if state is None:
        state = np.full((samples, replicas), int(ReplicaState.READY), dtype=np.int8)
    return FleetIntervals(
        ready_count=(state == ReplicaState.READY).sum(axis=1),
        starting_count=(state == ReplicaState.STARTING).sum(axis=1),
        ended_counts={
            f"{word}_count": np.bincount(
                in_interval(record.arrival_s[which], done.interval_s, samples), minlength=samples
            )
            for word, which in contract.unanswered(record.status).items()
        },
        usd=_cost(done.held_s, list(_replica_prices(fleet, usd_per_gpu_hour))),
        output_tokens=output_tokens,
    )


def _cost(held_s: Floats, usd_per_hour: Sequence[float | None]) -> Floats | None:
    """Dollars of the replicas that held gpus."""
    if None in usd_per_hour:
        return None
    usd: Floats = held_s @ np.array(usd_per_hour, dtype=np.float64) / 3600.0
    return usd


def _replica_prices(fleet: Fleet, usd_per_gpu_hour: Mapping[str, float]) -> Iterator[float | None]:
    """Dollars per hour of each replica; gpus that several stand on are paid for once, by the first."""
    paid = set()
    for group in fleet.groups:
        price = usd_per_gpu_hour.get(group.replica.deployment.gpu)
        gpus = group.replica.deployment.layout.gpu_count
        for number in range(group.replica_count):
            berth = None if group.berth is None else group.berth + number
            if berth in paid:
                yield 0.0
                continue
            if berth is not None:
                paid.add(berth)
            yield None if price is None else price * gpus
