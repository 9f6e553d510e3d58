"""Published prices: of a gpu by the hour, of an external API by the token."""

from functools import cache
from statistics import median
from typing import cast, get_args

from tokenfleet.catalog.gpu_table import gpu
from tokenfleet.catalog.prices_level import PriceLevel, offers, price_level
from tokenfleet.catalog.tables import Row, number, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Evidence, GpuPrice, GpuPriceRange, Term
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """Price of one external API model per million tokens; ``None`` is not published, never 0."""

    provider: str
    model: str
    kind: str
    input_usd_per_million_tokens: float | None
    cached_input_usd_per_million_tokens: float | None
    cache_write_usd_per_million_tokens: float | None
    output_usd_per_million_tokens: float | None
    batch_input_usd_per_million_tokens: float | None
    batch_output_usd_per_million_tokens: float | None
    context_window_tokens: int | None
    cross_check: str
    as_of: str
    source: str
    data_source: str


@cache
def _all_gpu_prices() -> tuple[GpuPrice, ...]:
    return tuple(_gpu_price(row) for row in rows("gpu_prices"))


def _gpu_price(row: Row) -> GpuPrice:
    note = row["note"]
    return GpuPrice(
        gpu=row["gpu"],
        provider=row["provider"],
        provider_class=row["provider_class"],
        region=row["region"],
        term=cast(Term, row["term"]),
        price_usd_per_gpu_hour=float(row["price_usd_per_gpu_hour"]),
        as_of=row["as_of"],
        source=row["source"],
        note=f"{row['sku']}; {note}" if note else row["sku"],
        evidence=cast(Evidence, row["evidence"]),
        low_usd_per_gpu_hour=number(row, "low_usd_per_gpu_hour"),
        high_usd_per_gpu_hour=number(row, "high_usd_per_gpu_hour"),
    )


def gpu_prices(gpu_name: str) -> tuple[GpuPrice, ...]:
    """Every published price of one gpu, in the order of the table; empty when none is known.

    Raises:
        BadInput: unknown gpu.
    """
    name = gpu(gpu_name).name
    return tuple(price for price in _all_gpu_prices() if price.gpu == name)


@cache
def providers() -> tuple[str, ...]:
    """Everybody who offers a gpu at a published price, by name."""
    return tuple(sorted({price.provider for price in offers(_all_gpu_prices())}))


@cache
def _level(term: Term) -> PriceLevel:
    return price_level(price for price in _all_gpu_prices() if price.term == term)


def reference_price(gpu_name: str, *, term: Term = "on_demand", provider: str | None = None) -> GpuPriceRange | None:
    """The price to reckon with for one gpu under one term.

    Without ``provider`` it is the price at the level of the median provider, so that gpus compare like for like (see
    :func:`tokenfleet.catalog.prices_level.price_level`); its evidence is ``reference``, and nobody offers exactly it.
    With ``provider`` it is that provider's real quote: the one nearest the median of its prices, the newer of two
    equally near; a secondary report stands in only where there is no quote of its own. Low and high are the ends of
    everything published, untouched.

    Args:
        gpu_name: any name that :func:`tokenfleet.catalog.gpu` accepts.
        term: how the gpu is rented.
        provider: only the prices of this provider, by its name in the table.

    Returns:
        The range, or ``None`` when nobody offers the gpu: an index or a range alone is no price to reckon with.

    Raises:
        BadInput: unknown gpu or term.
    """
    if term not in get_args(Term):
        raise BadInput.at("term", f"unknown term {term!r}", f"one of {', '.join(get_args(Term))}")
    published = [
        price
        for price in gpu_prices(gpu_name)
        if price.term == term and (provider is None or price.provider == provider.lower())
    ]
    held = offers(published)
    if not held:
        return None
    alone = len({price.provider for price in offers(_all_gpu_prices()) if price.term == term}) == 1
    ends = [
        end
        for price in published
        for end in (price.price_usd_per_gpu_hour, price.low_usd_per_gpu_hour, price.high_usd_per_gpu_hour)
        if end is not None
    ]
    low, high = min(ends), max(ends)
    made = _nearest_the_median(published) if provider or alone else _at_the_median_provider(held, low, high)
    return GpuPriceRange(
        price=made,
        low_usd_per_gpu_hour=low,
        high_usd_per_gpu_hour=high,
        published_count=len(published),
        basis=made.note if made.evidence == "reference" else f"{made.evidence} of {made.provider}: {made.note}",
    )


def _nearest_the_median(published: list[GpuPrice]) -> GpuPrice:
    held = [price for price in published if price.evidence == "quote"] or list(offers(published))
    middle = median(price.price_usd_per_gpu_hour for price in published)
    held.sort(key=lambda price: price.as_of, reverse=True)
    return min(held, key=lambda price: abs(price.price_usd_per_gpu_hour - middle))


def _at_the_median_provider(held: tuple[GpuPrice, ...], low: float, high: float) -> GpuPrice:
    """The comparable price of one gpu and term, as a price that says what it was made from."""
    name, term = held[0].gpu, held[0].term
    usd = round(_within_offers(held, _level(term).usd_per_gpu_hour[name]), 2)
    return GpuPrice(
        gpu=name,
        provider="median provider",
        provider_class="reference",
        region="",
        term=term,
        price_usd_per_gpu_hour=usd,
        as_of=max(price.as_of for price in held),
        source=f"catalog quotes of {', '.join(sorted({price.provider for price in held}))}",
        note=_basis(held),
        evidence="reference",
        low_usd_per_gpu_hour=low,
        high_usd_per_gpu_hour=high,
    )


def _within_offers(held: tuple[GpuPrice, ...], usd: float) -> float:
    """The level's price, kept between the offers of several providers: nobody sells outside of them.

    One provider alone says nothing about the market, so its price is left at the level.
    """
    asked = [price.price_usd_per_gpu_hour for price in held]
    if len({price.provider for price in held}) == 1:
        return usd
    return min(max(usd, min(asked)), max(asked))


def _basis(held: tuple[GpuPrice, ...]) -> str:
    """How the reference was made, the real quotes around it, and why none is near where that is so."""
    term = held[0].term.replace("_", "-")
    low = min(held, key=lambda price: (price.price_usd_per_gpu_hour, price.provider))
    high = max(held, key=lambda price: (price.price_usd_per_gpu_hour, price.provider))
    if low.provider == high.provider:
        factor = _level(held[0].term).provider_factor[low.provider]
        return (
            f"reference of {low.provider}'s {term} price, ${low.price_usd_per_gpu_hour:.2f}, at the price level of "
            f"the median provider; {low.provider} asks {factor:.2g} times that level"
        )
    text = (
        f"reference of {len(held)} {term} quotes at the price level of the median provider; real quotes "
        f"${low.price_usd_per_gpu_hour:.2f} ({low.provider}) to ${high.price_usd_per_gpu_hour:.2f} ({high.provider})"
    )
    at_level = _level(held[0].term).usd_per_gpu_hour[held[0].gpu]
    if low.price_usd_per_gpu_hour <= at_level <= high.price_usd_per_gpu_hour:
        return text
    end, side = ("cheapest", "dearer") if at_level < low.price_usd_per_gpu_hour else ("dearest", "cheaper")
    return f"{text}; all who sell it are {side} than the median provider, so the {end} counts"


@cache
def api_prices() -> tuple[ApiPrice, ...]:
    """Every external API price of the catalog, in the order of the table."""
    return tuple(
        ApiPrice(
            provider=row["provider"],
            model=row["model"],
            kind=row["kind"],
            input_usd_per_million_tokens=number(row, "input_usd_per_mtok"),
            cached_input_usd_per_million_tokens=number(row, "cached_input_usd_per_mtok"),
            cache_write_usd_per_million_tokens=number(row, "cache_write_usd_per_mtok"),
            output_usd_per_million_tokens=number(row, "output_usd_per_mtok"),
            batch_input_usd_per_million_tokens=number(row, "batch_input_usd_per_mtok"),
            batch_output_usd_per_million_tokens=number(row, "batch_output_usd_per_mtok"),
            context_window_tokens=int(row["context_window"]) if row["context_window"] else None,
            cross_check=row["cross_check"],
            as_of=row["as_of"],
            source=row["source_url"],
            data_source=row["data_source"],
        )
        for row in rows("api_prices")
    )
