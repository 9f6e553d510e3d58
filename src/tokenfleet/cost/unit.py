"""Price per million tokens: one formula, its denominator always named by the caller."""

_SECONDS_PER_HOUR = 3600.0


def usd_per_million(usd_per_hour: float, count_per_s: float, *, busy_fraction: float = 1.0) -> float | None:
    """Dollars per million of whatever ``count_per_s`` counts (output tokens, all tokens, requests).

    ``usd_per_hour / (count_per_s * 3600 * busy_fraction) * 1e6``. A fleet is paid for by the hour, busy or not,
    so at a tenth of the load a token costs ten times as much.

    Args:
        usd_per_hour: Price of the hour, >= 0.
        count_per_s: Rate while busy, > 0 for an answer.
        busy_fraction: Share of the paid time that has work, 0 to 1.

    Returns:
        Dollars per million, or ``None`` when nothing is produced: a price of nothing is unknown, not 0.

    Raises:
        ValueError: ``busy_fraction`` outside 0..1, or a negative price or rate.
    """
    if not 0.0 <= busy_fraction <= 1.0 or usd_per_hour < 0.0 or count_per_s < 0.0:
        raise ValueError(f"price {usd_per_hour}, rate {count_per_s}, busy fraction {busy_fraction}")
    per_hour = count_per_s * _SECONDS_PER_HOUR * busy_fraction
    return usd_per_hour / per_hour * 1e6 if per_hour > 0.0 else None
