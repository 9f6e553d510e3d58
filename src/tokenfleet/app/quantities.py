"""How people write durations, shares, rates and tokens; the only place where their units are read.

Every ``parse_*`` takes what YAML or the command line gives and returns SI units, or raises :class:`Unreadable`
that says what is wrong and how to write it.
"""

import math
import re
from decimal import Decimal
from typing import Final

LEAST_USD: Final = 1e-8
"""Less than this is what rounding left over in a line of a bill, no amount of dollars."""
MOST_USD: Final = 1e12
"""Nobody pays more."""

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_UNIT_WORDS: Final = {
    "sec": "s", "secs": "s", "second": "s", "seconds": "s", "S": "s",
    "msec": "ms", "millis": "ms", "millisecond": "ms", "milliseconds": "ms", "MS": "ms",
    "m": "min", "mins": "min", "minute": "min", "minutes": "min",
    "hr": "h", "hrs": "h", "hour": "h", "hours": "h", "H": "h",
    "day": "d", "days": "d",
}  # fmt: skip
_NUMBER: Final = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_DURATION: Final = re.compile(rf"({_NUMBER})\s*([A-Za-zµμ]+)")
_PERCENT: Final = re.compile(rf"({_NUMBER})\s*%")
_RATE: Final = re.compile(rf"({_NUMBER})\s*(?:/\s*(s|min|h))?")
_BYTES: Final = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9, "MB": 10**6}
_SIZE: Final = re.compile(rf"({_NUMBER})\s*(GiB|MiB|GB|MB)")
_SHORT_COUNT: Final = re.compile(rf"({_NUMBER})\s*[kK]")


class Unreadable(ValueError):
    """A written quantity that cannot be read: what is wrong, how to mend it."""

    def __init__(self, what: str, mend: str) -> None:
        self.what = what
        self.mend = mend
        super().__init__(f"{what}; {mend}")


def quoted(value: object) -> str:
    """The value as the person wrote it, cut to a length that fits on a line."""
    if isinstance(value, str):
        text = f'"{value}"'
    else:
        text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:56] + ' ..."'


def parse_duration_s(value: object) -> float:
    """Seconds of ``2s``, ``100ms``, ``30min``, ``1.5h``, ``7d``.

    Raises:
        Unreadable: no unit, an unknown unit, or not longer than zero.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = f"{value:g}"
        raise Unreadable(f"{number} has no unit", f"write {number}s or {number}ms")
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or not isinstance(value, str):
        raise Unreadable(f"{quoted(value)} is not a duration", "write 2s, 100ms or 30min")
    number, unit = found.groups()
    if unit not in _SECONDS or " " in value.strip():
        raise Unreadable(f"{quoted(value)} is not a duration", _duration_mend(number, _UNIT_WORDS.get(unit, unit)))
    duration_s = float(number) * _SECONDS[unit]
    if not 0.0 < duration_s < math.inf:
        raise Unreadable(f"{quoted(value)} is not a time one can wait", "write a duration above 0, such as 2s")
    return duration_s


def parse_moment_s(value: object) -> float:
    """Seconds after a start, written as a duration; ``0s`` is the start itself.

    Raises:
        Unreadable: no duration.
    """
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    is_start = found is not None and found.group(2) in _SECONDS and float(found.group(1)) == 0.0
    return 0.0 if is_start else parse_duration_s(value)


def _duration_mend(number: str, unit: str) -> str:
    if unit == "s":
        return f"write {number}s or {float(number) * 1000:g}ms"
    if unit in _SECONDS:
        return f"write {number}{unit}"
    return f"write a unit of {', '.join(_SECONDS)}, such as {number}s"


def parse_fraction(value: object, *, least_fraction: float = 0.0) -> float:
    """Share between 0 and 1 of ``0.1%``. A bare number is refused, because 0.1 may mean 10 % or 0.1 %.

    Args:
        value: As a person writes it.
        least_fraction: No share below is allowed.

    Raises:
        Unreadable: no percent sign, above 100 %, or below the least.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0 == least_fraction:
            return 0.0
        if value == 0:
            raise Unreadable(f"0 is less than {least_fraction:.0%}", _between(least_fraction))
        raise Unreadable(
            f"{value:g} may mean {value:g} % or {value * 100:g} %", f"write {value:g}% or {value * 100:g}%"
        )
    found = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise Unreadable(f"{quoted(value)} is not a share", "write it in percent, such as 0.1%")
    fraction = float(found.group(1)) / 100.0
    if fraction > 1.0:
        raise Unreadable(f"{quoted(value)} is more than everything", _between(least_fraction))
    if fraction < least_fraction:
        raise Unreadable(f"{quoted(value)} is less than {least_fraction:.0%}", _between(least_fraction))
    return fraction


def _between(least_fraction: float) -> str:
    return f"write a share between {least_fraction:.0%} and 100%"


def parse_rate_per_s(value: object) -> float:
    """Requests per second of ``20``, ``20/s``, ``1200/min`` or ``5000/h``.

    Raises:
        Unreadable: not a number, another unit, or not above zero.
    """
    text = f"{value!r}" if isinstance(value, int | float) and not isinstance(value, bool) else value
    found = _RATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise Unreadable(
            f"{quoted(value)} is not a request rate", "write requests per second as 20, or 20/s, 1200/min, 5000/h"
        )
    rate_per_s = float(found.group(1)) / _SECONDS[found.group(2) or "s"]
    if not 0.0 < rate_per_s < math.inf:
        raise Unreadable(f"{quoted(value)} asks for no requests at all", "write a rate above 0, such as 20/s")
    return rate_per_s


def parse_tokens(value: object) -> int:
    """Whole tokens above zero. ``32k`` is refused, because it may mean 32,000 or 32,768.

    Raises:
        Unreadable: not a whole number above zero.
    """
    if isinstance(value, str):
        short = _SHORT_COUNT.fullmatch(value.strip())
        if short:
            thousand, kibi = float(short.group(1)) * 1000, float(short.group(1)) * 1024
            raise Unreadable(
                f"{quoted(value)} may mean {thousand:.0f} or {kibi:.0f}", f"write {thousand:.0f} or {kibi:.0f}"
            )
        digits = value.strip().replace(",", "").replace("_", "")
        whole = digits.removeprefix("-")
        value = int(digits) if whole.isascii() and whole.isdigit() and len(whole) < 16 else value
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unreadable(f"{quoted(value)} is not a whole number", "write a whole number, such as 32768")
    if value <= 0:
        raise Unreadable(f"{value} is not above 0", "write a whole number above 0")
    return value


def parse_bytes(value: object) -> int:
    """Whole bytes of ``10GiB``, ``500MiB`` or ``10GB``; GiB are binary, GB decimal.

    Raises:
        Unreadable: no unit, another unit, or not above zero.
    """
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise Unreadable(f"{quoted(value)} is not a size", "write 10GiB, 500MiB or 10GB")
    size = round(float(found.group(1)) * _BYTES[found.group(2)])
    if size <= 0:
        raise Unreadable(f"{quoted(value)} is nothing", "write a size above 0, such as 2GiB")
    return size


def parse_positive(value: object) -> float:
    """A plain finite number above zero.

    Raises:
        Unreadable: text, a percentage, zero, negative or not finite.
    """
    if isinstance(value, str) and re.fullmatch(_NUMBER, value.strip()):
        value = float(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        percent = _PERCENT.fullmatch(value.strip().lstrip("+")) if isinstance(value, str) else None
        mend = (
            f"write {1 + float(percent.group(1)) / 100:g} for {percent.group(1)} % more"
            if percent
            else "write a number above 0"
        )
        raise Unreadable(f"{quoted(value)} is not a plain number", mend)
    if not 0.0 < value < math.inf:
        raise Unreadable(f"{value:g} is not above 0", "write a number above 0")
    return float(value)


def parse_dollars(value: object) -> float:
    """A plain number of dollars above zero that somebody may pay.

    Raises:
        Unreadable: as for :func:`parse_positive`, or a million millions and more.
    """
    amount_usd = parse_positive(value)
    if amount_usd > MOST_USD:
        raise Unreadable(f"{amount_usd:g} dollars are more than anybody pays", "write dollars")
    return amount_usd


def written_duration(duration_s: float) -> str:
    """A duration as a scenario writes it: ``2s``, ``50ms``, ``30min``."""
    for unit in ("d", "h", "min", "s"):
        count = duration_s / _SECONDS[unit]
        if count >= 1.0 and math.isclose(round(count), count, rel_tol=1e-12):
            return f"{round(count)}{unit}"
    scale, unit = (1.0, "s") if duration_s >= 1.0 else (1e3, "ms")
    return f"{duration_s * scale:.6f}".rstrip("0").rstrip(".") + unit


def shown_duration(duration_s: float) -> str:
    """A duration for a person: ``38 ms``, ``0.71 s``, ``12.4 s``, ``6 min 10 s``, ``2 h 30 min``."""
    if duration_s < 0.1995:
        return f"{duration_s * 1e3:.2g} ms" if duration_s < 0.00995 else f"{duration_s * 1e3:.0f} ms"
    if duration_s < 119.5:
        return f"{duration_s:.2f} s" if duration_s < 9.995 else f"{duration_s:.3g} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 120:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    # What lasts so long is known to the minute, and what is asked for at such a time is needed to the minute.
    hours, minutes = divmod(round(duration_s / 60.0), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"


def shown_count(value: float) -> str:
    """A count for a person: ``1,234``, ``12.3 k``, ``4.5 M``."""
    for limit, scale, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e5, 1e3, " k")):
        if abs(value) >= limit:
            return f"{value / scale:.3g}{unit}"
    return f"{value:,.0f}"


def shown_rate(rate_per_s: float) -> str:
    """Requests per second for a person, three digits."""
    return f"{rate_per_s:,.0f}" if rate_per_s >= 99.5 else f"{rate_per_s:.3g}"


def shown_usd(amount_usd: float) -> str:
    """Dollars for a person: cents where they matter, two digits below a dime; what rounding left over is nothing."""
    if abs(amount_usd) < LEAST_USD:
        return "$0"
    if amount_usd >= 1000:
        return f"${amount_usd:,.0f}"
    if amount_usd >= 0.0995:
        return f"${amount_usd:,.2f}"
    return f"${Decimal(f'{amount_usd:.2g}').normalize():f}"
