"""The clients of a service: how much each sends, how it bunches, how long its texts are."""

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats
from tokenfleet.workload.arrivals import gamma_gaps, weibull_gaps, weibull_shape
from tokenfleet.workload.lengths import CAP_Z
from tokenfleet.workload.preset_files import Preset
from tokenfleet.workload.streams import stream

_Z95 = NormalDist().inv_cdf(0.95)
_DRIFT = 0.3
"""How far a client's rate wanders from minute to minute, as the standard deviation of its logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """One entry per client; a service without tenants is one client without a name."""

    names: tuple[str, ...]
    share: Floats
    cv: Floats
    weibull: npt.NDArray[np.bool_]
    input_median: Floats
    """NaN: the preset's own input lengths apply."""
    input_ratio: Floats
    """p95 over median."""
    output_median: Floats
    output_ratio: Floats


def clients_of(preset: Preset, seed: int, cv: float) -> Clients:
    """The clients of a preset; ``cv`` is the burstiness of the only one where there are no tenants."""
    small = preset.small_clients
    if small is None:
        nothing = np.full(1, np.nan)
        return Clients(
            names=(),
            share=np.ones(1),
            cv=np.full(1, cv),
            weibull=np.zeros(1, dtype=bool),
            input_median=nothing,
            input_ratio=nothing,
            output_median=nothing,
            output_ratio=nothing,
        )
    large = preset.large_clients
    total = len(large) + small.count
    random = stream(seed, "clients")
    weight = np.sort(np.exp(small.share_spread * random.standard_normal(small.count)))[::-1]
    # The largest of the small stays below the smallest of the large, or the top ten would be others.
    smallest = min(client.share for client in large)
    rest = _capped_shares(weight, small.share, smallest)
    input_median = small.input_median.draw(random, total)
    output_median = small.output_median.draw(random, total)
    input_ratio = np.full(total, small.input_p95_over_median)
    output_ratio = np.full(total, small.output_p95_over_median)
    for index, client in enumerate(large):
        if client.input_tokens is not None:
            input_median[index], input_ratio[index] = (
                client.input_tokens[0],
                client.input_tokens[1] / client.input_tokens[0],
            )
        if client.output_tokens is not None:
            output_median[index] = client.output_tokens[0]
            output_ratio[index] = client.output_tokens[1] / client.output_tokens[0]
    share = np.concatenate(([client.share for client in large], rest))
    small_cv = small.cv.draw(random, small.count)
    return Clients(
        names=tuple(f"client-{index:03d}" for index in range(total)),
        share=share / share.sum(),
        cv=np.concatenate(([client.cv for client in large], small_cv)),
        weibull=np.concatenate(([client.gaps == "weibull" for client in large], small_cv > 2.0)),
        input_median=input_median,
        input_ratio=input_ratio,
        output_median=output_median,
        output_ratio=output_ratio,
    )


def client_starts(
    clients: Clients, index: int, seed: int, count: int, begin_s: float, end_s: float, upto: Floats
) -> Floats:
    """Start times of ``count`` sessions of one client: its own renewal process, under the load that all clients share.

    Args:
        clients: All of them.
        index: Which.
        seed: The trace's seed.
        count: Sessions in the whole span.
        begin_s: Start of the span; may lie before second 0.
        end_s: End of the span.
        upto: Cumulative load at each of the evenly spaced points of the span, from 0 to 1.
    """
    random = stream(seed, "session gaps", index)
    if clients.weibull[index]:
        gaps = weibull_gaps(random, count + 1, weibull_shape(float(clients.cv[index])))
    else:
        gaps = gamma_gaps(random, count + 1, float(clients.cv[index]))
    place = np.cumsum(gaps)
    place = place[:-1] / max(float(place[-1]), 1e-12)
    wander = np.exp(_DRIFT * stream(seed, "drift", index).standard_normal(len(upto) - 1))
    own = np.concatenate(([0.0], np.cumsum(np.diff(upto) * wander)))
    return np.asarray(np.interp(place, own / own[-1], np.linspace(begin_s, end_s, len(upto))), dtype=np.float64)


def own_lengths(median: Floats, ratio: Floats, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Log-normal lengths, each with a median and a p95 over median of its own, cut at 4 standard deviations."""
    z = np.clip(random.standard_normal(len(median)), -CAP_Z, CAP_Z)
    return np.maximum(np.rint(median * np.exp(np.log(ratio) / _Z95 * z)), 1).astype(np.int64)


def _capped_shares(weight: Floats, total: float, cap: float) -> Floats:
    share = weight / weight.sum() * total
    for _ in range(100):
        above = share > cap
        if not above.any():
            break
        spare = float((share[above] - cap).sum())
        share[above] = cap
        below = share < cap
        share[below] *= 1 + spare / float(share[below].sum())
    return np.asarray(share, dtype=np.float64)
