"""Amounts in whole cents that add up to a whole-cent total."""

from collections.abc import Hashable, Mapping
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def whole_cents(usd: Fraction) -> int:
    """Cents of an amount, the half rounded to even as on a ledger."""
    exact = usd * 100
    scaled = Decimal(exact.numerator) / Decimal(exact.denominator)
    return int(scaled.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def in_cents(amounts_usd: Mapping[Key, Fraction]) -> dict[Key, int]:
    """Rounds amounts to cents so that they add up to their exact sum, rounded once (largest remainder).

    Every amount is cut to whole cents and the cents left over go to the largest cut parts, so no amount moves by a
    cent or more, and whole cents stay as they are.

    Args:
        amounts_usd: exact amounts, >= 0; of equal remainders the first of the mapping gets the cent.

    Raises:
        ValueError: a negative amount.
    """
    if any(amount < 0 for amount in amounts_usd.values()):
        raise ValueError("an amount is negative")
    total = whole_cents(sum(amounts_usd.values(), Fraction(0)))
    cut = {key: int(amount * 100) for key, amount in amounts_usd.items()}
    by_remainder = sorted(amounts_usd, key=lambda key: amounts_usd[key] * 100 - cut[key], reverse=True)
    for key in by_remainder[: total - sum(cut.values())]:
        cut[key] += 1
    return cut
