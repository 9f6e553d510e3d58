"""Who sends in a trace drawn from a profile, how much each minute, and when: each client bunches in its own way."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, LengthCounts, Workload
from tokenfleet.workload.arrivals import MINUTE_S, gamma_gaps, weibull_gaps, weibull_shape
from tokenfleet.workload.client_tally import WINDOW_S
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]

_TRIES, _SAMPLE = 12, 20_000
_WINDOW_MINUTES = int(WINDOW_S // MINUTE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Party:
    """One client, or all that are described together."""

    names: tuple[str, ...]
    shares: Floats
    """Of each name among the party's units."""
    count: int
    """Requests to draw."""
    load: Floats
    """Relative load of each minute."""
    clock_cv: float
    """Variation of its gaps on a clock that runs with its load."""
    weibull: bool
    cells: LengthCounts


def parties_of(workload: Workload, counts: Longs, duration_s: float, seed: int) -> list[Party]:
    """Clients of a profile, and the others as one.

    Args:
        workload: The profile.
        counts: Requests of each minute to draw.
        duration_s: Length of the trace.
        seed: The trace's seed.
    """
    source = np.arange(len(counts)) % max(len(workload.minute_requests), 1)
    window = source // _WINDOW_MINUTES
    total = _sums(workload.minute_requests, int(window.max()) + 1)
    shares: list[Floats] = []
    found: list[_Described] = []
    for client in workload.clients:
        mine = np.zeros(len(total))
        size = min(len(total), len(client.window_requests))
        mine[:size] = client.window_requests[:size]
        shares.append((mine / np.maximum(total, 1))[window])
        found.append(((client.name,), np.ones(1), client.gap_cv, client.weibull, client.cells))
    rest = _others(workload)
    if rest is not None:
        shares.append(np.maximum(1 - np.sum(shares, axis=0), 0) if shares else np.ones(len(counts)))
        found.append(rest)
    loads = [counts * share for share in shares]
    sizes = _dealt(np.array([load.sum() for load in loads]), int(counts.sum()))
    return [
        Party(
            names=names,
            shares=share,
            count=int(size),
            load=load,
            clock_cv=_clock_cv(cv, weibull, int(size), _clock(load, duration_s), seed),
            weibull=weibull,
            cells=cells,
        )
        for (names, share, cv, weibull, cells), size, load in zip(found, sizes, loads, strict=True)
        if size
    ]


_Described = tuple[tuple[str, ...], Floats, float, bool, LengthCounts]


def _others(workload: Workload) -> _Described | None:
    """Everybody who is not described alone; ``None`` when there is nobody left."""
    alone = {client.name for client in workload.clients}
    others = {name: count for name, count in workload.tenant_request_counts.items() if name not in alone}
    if alone and not others:
        return None
    rest = workload.joint_counts.ravel().astype(np.int64)
    for client in workload.clients:
        rest[client.cells.values] -= client.cells.counts
    share = np.array(list(others.values()), dtype=np.float64)
    used = np.flatnonzero(rest > 0)
    cells = LengthCounts(values=used.astype(np.int64), counts=rest[used])
    return tuple(others), share / max(float(share.sum()), 1.0), float("nan"), False, cells


def unit_starts(party: Party, count: int, duration_s: float, seed: int, name: str) -> Floats:
    """When ``count`` sessions or lone requests of a party start: its renewal process under its own load.

    Args:
        party: Who.
        count: How many.
        duration_s: Length of the trace.
        seed: The trace's seed.
        name: What the random numbers are for.

    Returns:
        Seconds, rising.
    """
    return _started(party.weibull, party.clock_cv, count, _clock(party.load, duration_s), seed, name)


def _clock(load: Floats, duration_s: float) -> tuple[Floats, Floats]:
    """Share of the load up to the start of each minute and to the end, and when that is."""
    upto = np.concatenate(([0.0], np.cumsum(load)))
    upto = upto / upto[-1] if upto[-1] > 0 else np.linspace(0, 1, len(upto))
    return upto, np.minimum(np.arange(len(upto)) * MINUTE_S, duration_s)


def _started(weibull: bool, cv: float, count: int, clock: tuple[Floats, Floats], seed: int, name: str) -> Floats:
    random = stream(seed, "client gaps", name)
    gaps = weibull_gaps(random, count + 1, weibull_shape(cv)) if weibull else gamma_gaps(random, count + 1, cv)
    place = np.cumsum(gaps)
    return np.asarray(np.interp(place[:-1] / max(float(place[-1]), 1e-12), *clock), dtype=np.float64)


def _clock_cv(gap_cv: float, weibull: bool, count: int, clock: tuple[Floats, Floats], seed: int) -> float:
    """Variation of gaps on the clock of the load that gives the measured one on the wall clock.

    Where nothing is known, even starts leave the pauses of sessions as they were.
    """
    if np.isnan(gap_cv):
        return 0.0
    low, high = 0.05, 60.0
    count = max(min(count, _SAMPLE), 3)
    for _ in range(_TRIES):
        middle = float(np.sqrt(low * high))
        gaps = np.diff(_started(weibull, middle, count, clock, seed, "search"))
        reached = float(gaps.std() / max(float(gaps.mean()), 1e-12))
        low, high = (middle, high) if reached < gap_cv else (low, middle)
    return float(np.sqrt(low * high))


def _sums(minutes: Longs, windows: int) -> Longs:
    place = np.minimum(np.arange(len(minutes)) // _WINDOW_MINUTES, windows - 1)
    return np.bincount(place, weights=minutes, minlength=windows).astype(np.int64)


def _dealt(weights: Floats, total: int) -> Longs:
    upto = np.rint(np.concatenate(([0.0], np.cumsum(weights) / max(float(weights.sum()), 1e-12))) * total)
    return np.asarray(np.diff(upto), dtype=np.int64)
