"""Which of many quotes for a gpu counts."""

import statistics
from collections.abc import Sequence

from tokenfleet.domain.gpu import GpuPrice, GpuPriceRange

_ROUNDING = 1e-9


def costs_less(usd: float, than_usd: float) -> bool:
    """Whether a sum of prices is smaller by more than adding them up in another order makes it."""
    return usd < than_usd * (1.0 - _ROUNDING)


def quote(prices: Sequence[GpuPrice], gpu: str) -> GpuPriceRange | None:
    """The price to reckon with for ``gpu`` among ``prices``, and the range around it.

    A reference, made to compare gpus like for like, counts as it is. Otherwise the median is taken over every price
    for the gpu, and the answer is the quote nearest to it (the newer, then the cheaper of two equally near); what
    others report of a provider stands in only where no provider's own quote is known, and an index or a range only
    where nothing else is.

    Returns:
        ``None`` when there is no price: an unknown price is not 0.
    """
    offers = [price for price in prices if price.gpu == gpu]
    if not offers:
        return None
    middle = statistics.median(price.price_usd_per_gpu_hour for price in offers)
    held = next(
        found
        for kinds in (("reference",), ("quote",), ("secondary",), ("index", "range"))
        if (found := [price for price in offers if price.evidence in kinds])
    )
    held.sort(key=lambda price: (price.price_usd_per_gpu_hour, price.provider, price.region))
    held.sort(key=lambda price: price.as_of, reverse=True)
    # A reference is nobody's offer: its own figure is no end of what is asked.
    ends = [price.price_usd_per_gpu_hour for price in offers if price.evidence != "reference"]
    ends += [
        end for price in offers for end in (price.low_usd_per_gpu_hour, price.high_usd_per_gpu_hour) if end is not None
    ]
    return GpuPriceRange(
        price=min(held, key=lambda price: abs(price.price_usd_per_gpu_hour - middle)),
        low_usd_per_gpu_hour=min(ends),
        high_usd_per_gpu_hour=max(ends),
        published_count=len(offers),
    )
