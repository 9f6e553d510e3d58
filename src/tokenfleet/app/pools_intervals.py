"""What each pool of a simulation did between two samples, and all of them together."""

from collections.abc import Mapping, Sequence

import numpy as np

from tokenfleet.app.intervals import (
    Counts,
    FleetIntervals,
    Intervals,
    Waits,
    fleet_intervals,
    intervals_of,
    left_tokens,
    waits_of,
)
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Call, PoolRun, Pools, StagedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIntervals:
    """One pool by interval."""

    done: Intervals
    waits: Waits
    fleet: FleetIntervals


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemIntervals:
    """Pools by name, in the order of the stages, and the whole."""

    pools: Mapping[str, PoolIntervals]
    done: Intervals
    """Replicas counted over all pools."""
    fleet: FleetIntervals


def system_intervals(
    staged: StagedRun,
    pools: Pools,
    named: Sequence[NamedPool],
    interval_s: float,
    usd_per_gpu_hour: Mapping[str, float],
) -> SystemIntervals:
    """Take the counters of all pools apart by interval.

    Args:
        staged: The run, sampled every ``interval_s``.
        pools: What was replayed.
        named: What each pool serves.
        interval_s: Seconds.
        usd_per_gpu_hour: By gpu, where known.
    """
    calls = {stage.pool: stage for stage in pools.stages if isinstance(stage, Call)}
    models = {each.name: [each.model] * len(each.fleet.groups) for each in named}
    done = {
        name: intervals_of(run.record, interval_s, pools.fleets[name], models[name])
        for name, run in staged.pools.items()
    }
    tokens = {name: seen_tokens(calls[name], run, done[name]) for name, run in staged.pools.items()}

    def prices_of(name: str) -> Mapping[str, float]:
        # What of shared GPUs is a pool's own, nobody's price says.
        shared = any(group.berth is not None for group in pools.fleets[name].groups)
        return {} if shared else usd_per_gpu_hour

    by_pool = {
        name: PoolIntervals(
            done=done[name],
            waits=waits_of(run.record, run.trace, interval_s),
            fleet=fleet_intervals(run.record, done[name], pools.fleets[name], prices_of(name), tokens[name]),
        )
        for name, run in staged.pools.items()
    }
    everybody = Fleet(groups=tuple(group for name in staged.pools for group in pools.fleets[name].groups))
    whole = intervals_of(
        staged.record, interval_s, everybody, [model for name in staged.pools for model in models[name]]
    )
    total = np.zeros(len(whole.busy_fraction), dtype=np.int64)
    for each in tokens.values():
        total[: len(each)] += each
    fleet = fleet_intervals(staged.record, whole, everybody, usd_per_gpu_hour, total)
    return SystemIntervals(pools=by_pool, done=whole, fleet=fleet)


def seen_tokens(call: Call, run: PoolRun, done: Intervals) -> Counts:
    """Output tokens of a pool that users saw, by interval: none of a pool whose tokens are thrown away.

    Where the KV of the prompt came along, the first token too is decoded.
    """
    if not call.is_seen:
        return np.zeros(len(done.decode_tokens), dtype=np.int64)
    decoded: Counts = done.decode_tokens.sum(axis=1)
    return decoded if call.kv_delivered else left_tokens(run.record, done)
