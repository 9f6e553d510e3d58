"""Numbers as people read them: a unit, two or three digits, and never a bare ``None`` or NaN."""

import math
from collections.abc import Sequence

from tokenfleet.app.quantities import LEAST_USD

UNKNOWN = "unknown"
GAP = "\u00a0"
"""Between a number and its unit, so that no line breaks there."""
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_SPANS = ((2 * 86_400.0, 86_400.0, "d"), (2 * 3_600.0, 3_600.0, "h"), (120.0, 60.0, "min"))


def digits(value: float, count: int = 3) -> str:
    """``value`` with ``count`` significant digits, in plain notation with thousands apart: ``1,234``, ``0.0123``."""
    if not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    decimals = max(0, count - 1 - magnitude)
    text = f"{value:,.{decimals}f}"
    # 0.9996 rounds up into the next decade and would otherwise show a digit too many.
    if decimals and abs(float(text.replace(",", ""))) >= 10 ** (magnitude + 1):
        text = f"{value:,.{decimals - 1}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def amount(value: float | None) -> str:
    """A count or a rate: exact up to 9,999, then with k, M, G, T."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            scale = 1e3 if prefix == "k" else size
            return f"{digits(value / scale)}{GAP}{prefix}"
    return digits(value, 4) if value == int(value) else digits(value)


def exact(count: int) -> str:
    """A count that must add up with others: ``1,234,567``."""
    return f"{count:,}"


def _second_unit(value_s: float) -> tuple[float, str]:
    """Seconds per unit, and the unit, in which a person reads ``value_s``."""
    for least_s, unit_s, name in _SPANS:
        if abs(value_s) >= least_s:
            return unit_s, name
    return (1.0, "s") if abs(value_s) >= 0.0995 or value_s == 0 else (1e-3, "ms")


def duration(value_s: float | None) -> str:
    """Seconds as ``38 ms``, ``0.71 s``, ``35 min``, ``3.2 h``."""
    if value_s is None or not math.isfinite(value_s):
        return UNKNOWN
    unit_s, name = _second_unit(value_s)
    return f"{digits(value_s / unit_s)}{GAP}{name}"


def clock(value_s: float) -> str:
    """Seconds since the start of a trace as ``2 d 03:04:05`` or ``03:04:05``."""
    whole = round(value_s)
    days, rest = divmod(whole, 86_400)
    text = f"{rest // 3_600:02d}:{rest % 3_600 // 60:02d}:{rest % 60:02d}"
    return f"{days} d {text}" if days else text


def percent(fraction: float | None) -> str:
    """A share as ``12.3 %``."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{digits(fraction * 100)}{GAP}%"


def size(value_bytes: float | None) -> str:
    """Bytes in GiB, MiB or KiB, as memory is counted."""
    if value_bytes is None or not math.isfinite(value_bytes):
        return UNKNOWN
    for unit_bytes, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value_bytes) >= unit_bytes:
            return f"{digits(value_bytes / unit_bytes)}{GAP}{name}"
    return f"{digits(value_bytes)}{GAP}B"


def usd(value: float | None) -> str:
    """Dollars: cents up to a thousand, whole dollars above, two digits that count below ten cents."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    sign = "-" if value < 0 else ""
    size_usd = abs(value)
    if size_usd >= 1000:
        return f"{sign}${size_usd:,.0f}"
    if size_usd < LEAST_USD:
        return "$0.00"
    if size_usd >= 0.1:
        return f"{sign}${size_usd:.2f}"
    return f"{sign}${digits(size_usd, 2)}"


def measure(value: float | None, unit: str, *, beside: float | None = None) -> str:
    """A figure in a unit of :class:`tokenfleet.domain.slo.SloResult`: ``s``, ``fraction`` or ``count``.

    Times that stand ``beside`` a promise are shown in its unit, so that a person compares digits: milliseconds below
    a second, else seconds.
    """
    if unit == "fraction":
        return percent(value)
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if unit == "count":
        return amount(value)
    if unit != "s":
        return f"{amount(value)}{GAP}{unit}"
    scale_s, name = _second_unit(value) if beside is None else _promise_unit(beside)
    return f"{digits(value / scale_s)}{GAP}{name}"


def promise(limit: float, unit: str) -> str:
    """What was promised: ``100 ms``, ``2 s``, ``0.1 %``."""
    return measure(limit, unit, beside=limit)


def _promise_unit(limit_s: float) -> tuple[float, str]:
    return (1e-3, "ms") if limit_s < 1.0 else (1.0, "s")


def measure_range(
    value: float | None, low: float | None, high: float | None, unit: str, *, beside: float | None = None
) -> str:
    """``value (low-high)`` in the unit of the value: ``0.71 s (0.45-1.1)``; ``beside`` as in :func:`measure`.

    A range that has a low end alone ends where too few requests had an answer: never.
    """
    text = measure(value, unit, beside=beside)
    if value is None or low is None or low == high or not all(map(math.isfinite, (value, low, high or 0.0))):
        return text
    if unit == "s":
        scale = (_second_unit(value) if beside is None else _promise_unit(beside))[0]
    else:
        scale = 0.01 if unit == "fraction" else 1.0
    slowest = "never" if high is None else digits(high / scale, 2)
    return f"{text} ({digits(low / scale, 2)}–{slowest})"


def plural(count: int, noun: str) -> str:
    """``1 replica``, ``5 replicas``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def cents_that_add_up(parts: Sequence[float], total: float) -> list[str]:
    """Dollars rounded so that the shown parts add up to the shown total.

    The digits lost to rounding go to the parts that lost most (largest remainder). Where the parts differ from
    the total by more than rounding, nothing is hidden: each is rounded on its own.
    """
    decimals = 2 if total >= 0.5 else 4
    unit = 10**decimals
    exact_units = [part * unit for part in parts]
    floors = [math.floor(value) for value in exact_units]
    missing = round(total * unit) - sum(floors)
    if not 0 <= missing <= len(parts):
        return [f"${part:,.{decimals}f}" for part in parts]
    by_loss = sorted(range(len(parts)), key=lambda i: floors[i] - exact_units[i])
    for index in by_loss[:missing]:
        floors[index] += 1
    return [f"${value / unit:,.{decimals}f}" for value in floors]
