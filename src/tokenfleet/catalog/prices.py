"""Published prices: of a gpu by the hour, of an external API by the token."""

from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import cast, get_args

from tokenfleet.catalog.gpus import gpu
from tokenfleet.catalog.tables import Row, number, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Evidence, GpuPrice, GpuPriceRange, Term


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


def reference_price(gpu_name: str, *, term: Term = "on_demand", provider: str | None = None) -> GpuPriceRange | None:
    """The price to reckon with for one gpu under one term.

    The median is taken over everything published for the gpu and term (quotes, secondary reports, indexes, middles
    of ranges). The answer is the quote nearest to it, the newer one of two equally near; a secondary report stands
    in only where no provider's own quote is known, an index or a range never does. Low and high are the ends of
    everything published.

    Args:
        gpu_name: any name that :func:`tokenfleet.catalog.gpu` accepts.
        term: how the gpu is rented.
        provider: only the prices of this provider, by its name in the table.

    Returns:
        The range, or ``None`` when nobody's price is known.

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
    quotes = [price for price in published if price.evidence == "quote"]
    quotes = quotes or [price for price in published if price.evidence == "secondary"]
    if not quotes:
        return None
    middle = median(price.price_usd_per_gpu_hour for price in published)
    quotes.sort(key=lambda price: price.as_of, reverse=True)
    ends = [
        end
        for price in published
        for end in (price.price_usd_per_gpu_hour, price.low_usd_per_gpu_hour, price.high_usd_per_gpu_hour)
        if end is not None
    ]
    return GpuPriceRange(
        price=min(quotes, key=lambda price: abs(price.price_usd_per_gpu_hour - middle)),
        low_usd_per_gpu_hour=min(ends),
        high_usd_per_gpu_hour=max(ends),
        published_count=len(published),
    )


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
