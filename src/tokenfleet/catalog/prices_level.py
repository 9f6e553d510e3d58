"""Prices on one level: what each gpu would cost at the provider in the middle of the market.

Providers differ threefold for the same gpu, and few gpus are sold by the same providers, so the middle of one gpu's
quotes says as much about who quotes as about the gpu. Here log price = gpu + provider, fitted with Huber's loss, so
that one odd quote does not move the rest.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import permutations, product
from statistics import median

import numpy as np

from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.records import dataclass

_WEIGHTS = {"quote": 2.0, "secondary": 1.0}
"""A provider's own figure counts twice what others report of a provider; indexes and ranges are nobody's offer."""
_ODD = 0.1
"""A log price further than this from the fit pulls no harder than at this distance: about 10 % of the price."""
_PASSES = 200
_APART = 0.02
"""Gpus whose order nobody disputes stay at least 2 % apart."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """A provider's cheapest price of one gpu, as a logarithm."""

    gpu: str
    provider: str
    log_usd: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceLevel:
    """Prices of one term brought to one level."""

    usd_per_gpu_hour: Mapping[str, float]
    """Each gpu's price at the provider whose level is the median."""
    provider_factor: Mapping[str, float]
    """What each provider asks for the same gpu, as a multiple of the median provider."""


def offers(prices: Iterable[GpuPrice]) -> tuple[GpuPrice, ...]:
    """Those that somebody stands behind: quotes and reports of quotes, not indexes or ranges."""
    return tuple(price for price in prices if price.evidence in _WEIGHTS)


def price_level(prices: Iterable[GpuPrice]) -> PriceLevel:
    """Fits ``log price = gpu + provider`` to the offers of one term.

    Of several regions of one provider the cheapest counts. Where every provider that sells two gpus asks more for the
    same one of them, so does the result, by 2 % at least. A gpu of a single provider that breaks such an order is
    moved to that provider's ratio. The gpu with fewer offers yields. A provider that shares no gpu with the others is
    taken at the median level of its class, or at the middle when its class is unknown.

    Args:
        prices: Prices of one term; indexes and ranges are ignored.

    Returns:
        The level of the median provider; empty without offers.
    """
    held = offers(prices)
    table = _table(held)
    if not table:
        return PriceLevel(usd_per_gpu_hour={}, provider_factor={})
    linked = _largest_part(table)
    gpu, provider = _fit([each for each in table if each.gpu in linked])
    middle = median(provider.values())
    gpu = {name: value + middle for name, value in gpu.items()}
    provider = {name: value - middle for name, value in provider.items()}
    classes = {price.provider: price.provider_class for price in held}
    for each in table:
        if each.provider not in provider:
            alike = [level for name, level in provider.items() if classes[name] == classes[each.provider]]
            provider[each.provider] = median(alike) if alike else 0.0
    for name, found in _by_gpu(table).items():
        if name not in gpu:
            gpu[name] = median(each.log_usd - provider[each.provider] for each in found)
    gpu = _in_order(gpu, table)
    return PriceLevel(
        usd_per_gpu_hour={name: math.exp(gpu[name]) for name in sorted(gpu)},
        provider_factor={name: math.exp(provider[name]) for name in sorted(provider)},
    )


def _table(held: Iterable[GpuPrice]) -> list[_Offer]:
    cheapest: dict[tuple[str, str], _Offer] = {}
    for price in held:
        made = _Offer(price.gpu, price.provider, math.log(price.price_usd_per_gpu_hour), _WEIGHTS[price.evidence])
        key = (made.gpu, made.provider)
        if key not in cheapest or made.log_usd < cheapest[key].log_usd:
            cheapest[key] = made
    return [cheapest[key] for key in sorted(cheapest)]


def _by_gpu(table: Iterable[_Offer]) -> dict[str, list[_Offer]]:
    found: dict[str, list[_Offer]] = {}
    for each in table:
        found.setdefault(each.gpu, []).append(each)
    return found


def _by_provider(table: Iterable[_Offer]) -> dict[str, list[_Offer]]:
    found: dict[str, list[_Offer]] = {}
    for each in table:
        found.setdefault(each.provider, []).append(each)
    return found


def _largest_part(table: list[_Offer]) -> set[str]:
    """Gpus that providers link with one another, of the part of the table with the most offers."""
    parts: list[set[str]] = []
    for sold in _by_provider(table).values():
        gpus = {each.gpu for each in sold}
        touching = [part for part in parts if part & gpus]
        parts = [part for part in parts if not part & gpus] + [gpus.union(*touching)]
    return max(parts, key=lambda part: (sum(each.gpu in part for each in table), sorted(part)))


def _fit(table: list[_Offer]) -> tuple[dict[str, float], dict[str, float]]:
    """Gpu and provider terms of least Huber loss, by reweighted least squares; their common shift is arbitrary."""
    gpus, providers = sorted(_by_gpu(table)), sorted(_by_provider(table))
    design = np.zeros((len(table), len(gpus) + len(providers)))
    for row, each in enumerate(table):
        design[row, gpus.index(each.gpu)] = 1.0
        design[row, len(gpus) + providers.index(each.provider)] = 1.0
    log_usd = np.array([each.log_usd for each in table])
    trust = np.array([each.weight for each in table])
    weight = trust
    terms = np.zeros(design.shape[1])
    for _ in range(_PASSES):
        root = np.sqrt(weight)
        terms = np.linalg.lstsq(design * root[:, None], log_usd * root, rcond=None)[0]
        weight = trust * np.minimum(1.0, _ODD / np.maximum(np.abs(log_usd - design @ terms), _ODD))
    values = [float(term) for term in terms]
    return dict(zip(gpus, values[: len(gpus)], strict=True)), dict(zip(providers, values[len(gpus) :], strict=True))


def _undisputed(table: list[_Offer]) -> dict[tuple[str, str], float]:
    """Log distance to keep between (cheap, dear) whose order no provider disputes, chains of such pairs included."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for sold in _by_provider(table).values():
        for low, high in permutations(sold, 2):
            ratios.setdefault((low.gpu, high.gpu), []).append(high.log_usd - low.log_usd)
    apart = {pair: _APART for pair, found in ratios.items() if min(found) >= 0.0 < max(found)}
    names = sorted({name for pair in apart for name in pair})
    for middle, cheap, dear in product(names, repeat=3):
        if (cheap, middle) in apart and (middle, dear) in apart and cheap != dear:
            apart[cheap, dear] = max(apart[cheap, middle] + apart[middle, dear], apart.get((cheap, dear), 0.0))
    return apart


def _in_order(gpu: Mapping[str, float], table: list[_Offer]) -> dict[str, float]:
    """The gpu terms moved as little as needed to keep the undisputed order, those with the most offers first."""
    apart, by_gpu, by_provider = _undisputed(table), _by_gpu(table), _by_provider(table)
    placed: dict[str, float] = {}
    for name in sorted(by_gpu, key=lambda each: (-sum(offer.weight for offer in by_gpu[each]), each)):
        wanted = gpu[name]
        if len(by_gpu[name]) == 1:
            only = by_gpu[name][0]
            cheaper = [each for each in by_provider[only.provider] if each.gpu in placed and (each.gpu, name) in apart]
            wanted = max([wanted, *(placed[each.gpu] + only.log_usd - each.log_usd for each in cheaper)])
        low = [value + apart[other, name] for other, value in placed.items() if (other, name) in apart]
        high = [value - apart[name, other] for other, value in placed.items() if (name, other) in apart]
        placed[name] = min([max([wanted, *low]), *high])
    return placed
