"""What the market asks for one gpu under every term, ready for a purchase mix."""

from collections.abc import Mapping
from dataclasses import field

from tokenfleet.catalog import reference_price
from tokenfleet.cost.purchase import Commitment, Rent
from tokenfleet.domain.gpu import RESERVED_H, GpuPriceRange, Term
from tokenfleet.domain.records import dataclass

TYPICAL_OF_ON_DEMAND: dict[Term, tuple[float, float]] = {
    "reserved_1y": (0.5, 0.8),
    "reserved_3y": (0.38, 0.5),
    "spot": (0.35, 0.75),
}
"""Lowest and highest share of the on-demand price seen under other terms: one-year contracts of neoclouds, three-year
plans of AWS and OCI, spot at Nebius and GCP. A range to try where a price is unknown, never filled in unasked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Prices of one gpu."""

    gpu: str
    rent: Rent | None
    """``None`` when nobody's on-demand price is known: then nothing can be weighed against a commitment."""
    commitments: tuple[Commitment, ...]
    basis: tuple[str, ...]
    """Where each price comes from, for a person."""
    unknown: tuple[Term, ...]
    """Terms without a price: enter your own, or try the shares of ``TYPICAL_OF_ON_DEMAND``."""
    quotes: Mapping[Term, GpuPriceRange] = field(default_factory=dict)
    """What each known price is, with its range and date."""


def market(
    gpu: str,
    *,
    provider: str | None = None,
    spot_lost_fraction: float = 0.0,
    obtainable_fraction: float = 1.0,
    shortage_usd_per_gpu_hour: float | None = None,
) -> Market:
    """The catalog's prices of a gpu: the comparable reference of each term, or one provider's own quotes.

    Args:
        gpu: any name that :func:`tokenfleet.catalog.gpu` accepts.
        provider: only this provider's quotes.
        spot_lost_fraction: see :class:`tokenfleet.cost.Rent`.
        obtainable_fraction: see there.
        shortage_usd_per_gpu_hour: see there.

    Raises:
        BadInput: unknown gpu.
    """
    terms: tuple[Term, ...] = ("on_demand", "spot", *RESERVED_H)
    found = {term: reference_price(gpu, term=term, provider=provider) for term in terms}
    usd = {term: price.price.price_usd_per_gpu_hour for term, price in found.items() if price is not None}
    rent = None
    if "on_demand" in usd:
        rent = Rent(
            on_demand_usd_per_gpu_hour=usd["on_demand"],
            obtainable_fraction=obtainable_fraction,
            shortage_usd_per_gpu_hour=shortage_usd_per_gpu_hour,
            spot_usd_per_gpu_hour=usd.get("spot"),
            spot_lost_fraction=spot_lost_fraction,
        )
    return Market(
        gpu=gpu,
        rent=rent,
        commitments=tuple(
            Commitment(name=term, usd_per_gpu_hour=usd[term], term_h=hours)
            for term, hours in RESERVED_H.items()
            if term in usd
        ),
        basis=tuple(f"{term}: {price.basis}" for term, price in found.items() if price is not None),
        unknown=tuple(term for term, price in found.items() if price is None),
        quotes={term: price for term, price in found.items() if price is not None},
    )
