"""Time stamps as people write them, turned into nanoseconds; what cannot be known is asked for, not guessed."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.formats.rows import Clock, ReadOptions
from tokenfleet.workload.spelling import nearest

if TYPE_CHECKING:
    import polars as pl

UNIT_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}

_UNIT_OF_SUFFIX = {
    "_s": "s", "_sec": "s", "_secs": "s", "_seconds": "s", "_ms": "ms", "_millis": "ms", "_milliseconds": "ms",
    "_us": "us", "_micros": "us", "_microseconds": "us", "_ns": "ns", "_nanos": "ns", "_nanoseconds": "ns",
}  # fmt: skip

_EPOCH_FROM_S, _EPOCH_TO_S = 978_307_200, 4_102_444_800
"""2001 to 2100: a number that reads as such a date in exactly one unit is a date."""

_LAST_MS = 9_000_000_000_000
"""In the year 2255; nanoseconds since 1970 end in 2262."""

_TICKS_TO_EPOCH = 621_355_968_000_000_000
"""Ticks of 100 ns from year 1 to 1970, as .NET counts."""

_STAMP = (
    r"^\s*(?P<day>\d{4}[-/]\d\d[-/]\d\d)[ Tt](?P<clock>\d\d:\d\d)(?P<second>:\d\d)?(?:[.,](?P<fraction>\d{1,12}))?"
    r"\s*(?P<zone>Z|z|UTC|GMT|[+-]\d\d:?\d\d|[+-]\d\d)?\s*$"
)
_MONTH_FIRST = ("%m/%d/%Y, %I:%M:%S%.f %p", "%m/%d/%Y %I:%M:%S%.f %p", "%m/%d/%Y %H:%M:%S%.f", "%m/%d/%Y %H:%M")
_DAY_FIRST = ("%d/%m/%Y %H:%M:%S%.f", "%d/%m/%Y %H:%M", "%d.%m.%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M")
_WITH_ZONE = ("%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%Y%m%dT%H%M%S%z")
"""How mail and web servers write a time."""


def unit_of_name(column: str) -> str | None:
    """Unit that a column's name states, such as ``ms`` of ``arrival_ms``."""
    lower = column.lower()
    for suffix, unit in _UNIT_OF_SUFFIX.items():
        if lower.endswith(suffix):
            return unit
    return None


def to_ns(
    stamps: "pl.Series", options: ReadOptions, *, where: str, detected: dict[str, str], unit: str | None = None
) -> "tuple[pl.Series, Clock]":
    """Nanoseconds of each stamp, null where it cannot be read.

    Args:
        stamps: Numbers, text, or polars datetimes.
        options: A person's word on unit and zone comes first.
        where: File and column, for errors.
        detected: Gets ``time unit`` and ``zone``.
        unit: Unit that the format defines, when it does.

    Returns:
        Integers, and what their zero is: 1970 in UTC, 1970 on an unnamed clock, or an unknown instant.

    Raises:
        BadInput: a number whose unit is open, an unknown zone, or naive and zoned stamps in one column.
    """
    import polars as pl

    if options.zone is not None:
        _must_be_a_zone(options.zone)
    if stamps.dtype in (pl.Datetime, pl.Date):
        zoned = getattr(stamps.dtype, "time_zone", None) is not None
        ns = stamps.cast(pl.Datetime("ns", getattr(stamps.dtype, "time_zone", None))).dt.timestamp("ns")
        detected["time unit"] = "date and time"
        return (ns, _zoned(detected)) if zoned else _naive(ns, options, detected)
    if stamps.dtype == pl.String:
        numbers = _as_numbers(stamps)
        if numbers is None:
            return _from_text(stamps, options, where, detected)
        stamps = numbers
    return _from_numbers(stamps, options, where, detected, unit)


def _from_numbers(
    stamps: "pl.Series", options: ReadOptions, where: str, detected: dict[str, str], unit: str | None
) -> "tuple[pl.Series, Clock]":
    import polars as pl

    if stamps.dtype.is_float():
        stamps = stamps.replace([float("nan"), float("inf"), float("-inf")], None)
    largest = stamps.abs().max()
    if largest is None:
        return stamps.cast(pl.Int64), "relative"
    top = float(largest)  # type: ignore[arg-type]
    dates = [name for name, ns in UNIT_NS.items() if _EPOCH_FROM_S * 1e9 <= top * ns <= _EPOCH_TO_S * 1e9]
    if options.time_unit is None and _TICKS_TO_EPOCH <= top <= 662_380_416_000_000_000:
        detected["time unit"] = ".NET ticks of 100 ns"
        return (stamps.cast(pl.Int64) - _TICKS_TO_EPOCH) * 100, _zoned(detected)
    chosen = options.time_unit or unit or (dates[0] if len(dates) == 1 else None)
    if chosen is None:
        raise BadInput.at(
            where,
            f"numbers up to {top:g} may be seconds, milliseconds or less: the file does not say",
            "say time_unit: s, or ms, us, ns",
        )
    detected["time unit"] = chosen
    ns = _scaled(stamps, UNIT_NS[chosen])
    if chosen in dates:
        detected["zone"] = "UTC (counted since 1970)"
        return ns, "utc"
    detected["zone"] = "none: counted from the start of the trace"
    return ns, "relative"


def _as_numbers(stamps: "pl.Series") -> "pl.Series | None":
    """Text that holds numbers in at least half of its known cells, as whole numbers where all of those are."""
    import polars as pl

    most = len(stamps) - stamps.null_count()
    # A look at the head spares parsing millions of dates as numbers first.
    for part in (stamps.head(1000), stamps):
        numbers = part.str.strip_chars().cast(pl.Float64, strict=False)
        known = len(part) - part.null_count()
        if (len(part) - numbers.null_count()) * 2 < known or not most:
            return None
    whole = stamps.str.strip_chars().cast(pl.Int64, strict=False)
    return whole if whole.null_count() == numbers.null_count() else numbers


def _scaled(stamps: "pl.Series", factor: int) -> "pl.Series":
    import polars as pl

    room = 9 * 10**18 // factor
    stamps = pl.select(pl.when(stamps.is_between(-room, room)).then(stamps)).to_series()
    if not stamps.dtype.is_float():
        return stamps.cast(pl.Int64) * factor
    # Whole and broken part apart, the broken one to microseconds: a float since 1970 has no room for more.
    whole = stamps.floor()
    step = 1000 if float(stamps.abs().max() or 0) * factor > 2**53 else 1  # type: ignore[arg-type]
    rest = ((stamps - whole) * (factor / step)).round().cast(pl.Int64, strict=False)
    return whole.cast(pl.Int64, strict=False) * factor + rest * step


def _from_text(
    stamps: "pl.Series", options: ReadOptions, where: str, detected: dict[str, str]
) -> "tuple[pl.Series, Clock]":
    import polars as pl

    alike = _alike(stamps)
    if alike is not None:
        ns, digits, zone = alike
        _tell_digits(digits, detected)
        if zone is None:
            return _naive(ns, options, detected)
        return ns - int(_offset_ns(pl.Series([zone])).item()), _zoned(detected)
    parts = stamps.str.extract_groups(_STAMP).struct.unnest()
    if parts["day"].null_count() * 2 > len(stamps):
        other = _other_layout(stamps.str.strip_chars(), options, where, detected)
        if other is not None:
            return other
    clock = parts["day"].str.replace_all("/", "-") + " " + parts["clock"] + parts["second"].fill_null(":00")
    seconds = clock.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="ms")
    fraction = (parts["fraction"].fill_null("") + "000000000").str.slice(0, 9).cast(pl.Int64)
    ms = seconds.dt.timestamp("ms")
    # Years that nanoseconds cannot count are no times of requests, and must not wrap round into ones that are.
    ms = pl.select(pl.when(ms.is_between(0, _LAST_MS)).then(ms)).to_series()
    ns = ms * 1_000_000 + fraction
    digits = int(parts["fraction"].str.len_chars().fill_null(0).max() or 0)  # type: ignore[arg-type]
    _tell_digits(digits, detected)
    return _on_a_clock(ns, parts["zone"], options, where, detected)


def _other_layout(
    stamps: "pl.Series", options: ReadOptions, where: str, detected: dict[str, str]
) -> "tuple[pl.Series, Clock] | None":
    """Stamps in the ways of mail, web servers and spreadsheets; ``None`` when most are in none of them.

    Raises:
        BadInput: dates whose day may be the month.
    """
    written = stamps.str.replace(r" ?(GMT|UTC|Z)$", " +0000").str.replace(r"^(\d{8}T\d{6}) ", "$1")
    for layout in _WITH_ZONE:
        zoned = written.str.to_datetime(layout, strict=False, time_unit="ns")
        if zoned.null_count() * 2 <= len(stamps):
            detected["time unit"] = "date and time, whole seconds"
            return zoned.dt.timestamp("ns"), _zoned(detected)
    month_first, day_first = (_best(stamps, layouts) for layouts in (_MONTH_FIRST, _DAY_FIRST))
    if month_first is None and day_first is None:
        return None
    if month_first is not None and day_first is not None:
        if month_first.null_count() == day_first.null_count() and not month_first.equals(day_first):
            mend = "write dates as 2026-03-29"
            raise BadInput.at(where, "dates such as 04/03/2026 may begin with the day or with the month", mend)
        if month_first.null_count() > day_first.null_count():
            month_first = None
    chosen = day_first if month_first is None else month_first
    assert chosen is not None
    detected["time unit"] = f"date and time, {'day' if month_first is None else 'month'} first"
    return _naive(chosen.dt.timestamp("ns"), options, detected)


def _best(stamps: "pl.Series", layouts: Sequence[str]) -> "pl.Series | None":
    """Stamps under the first layout that at least half of them have."""
    for layout in layouts:
        found = stamps.str.to_datetime(layout, strict=False, time_unit="ns")
        if found.null_count() * 2 <= len(stamps):
            return found
    return None


_ALIKE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,]([0-9]{1,9}))?"
    r"(Z|z|UTC|[+-][0-9]{2}:?[0-9]{2}|[+-][0-9]{2})?"
)
_FEWEST_ALIKE = 100_000
"""Fewer stamps are read before the compiled code is loaded."""


def _alike(stamps: "pl.Series") -> "tuple[pl.Series, int, str | None] | None":
    """Nanoseconds, digits of a second and zone of stamps that are all written alike; ``None`` when they are not.

    What differs in length, in form or in its zone is left to the general way.
    """
    import numpy as np
    import polars as pl

    if len(stamps) < _FEWEST_ALIKE or stamps.null_count() or stamps.str.len_bytes().n_unique() > 1:
        return None
    shape = _ALIKE.fullmatch(str(stamps[0]))
    if shape is None:
        return None
    from tokenfleet.workload.sweep import stamps_alike

    digits, zone = len(shape[1] or ""), shape[2]
    text = np.frombuffer(str(stamps.str.join("").item()).encode(), dtype=np.uint8).reshape(len(stamps), -1)
    ns = np.empty(len(stamps), dtype=np.int64)
    return (pl.Series(ns), digits, zone) if stamps_alike(text, digits, ns) else None


def _tell_digits(digits: int, detected: dict[str, str]) -> None:
    detected["time unit"] = "date and time" + (f", {digits} digits of a second" if digits else ", whole seconds")


def _on_a_clock(
    ns: "pl.Series", zone: "pl.Series", options: ReadOptions, where: str, detected: dict[str, str]
) -> "tuple[pl.Series, Clock]":
    import polars as pl

    zoned = zone.is_not_null() & ns.is_not_null()
    if not zoned.any():
        return _naive(ns, options, detected)
    bare = int((~zoned & ns.is_not_null()).sum())
    if bare and options.zone is None:
        raise BadInput.at(
            where,
            f"{bare} stamps have no time zone and {int(zoned.sum())} have one",
            "name the zone of those without: say zone: UTC, or Europe/Berlin",
        )
    shifted = ns - _offset_ns(zone)
    if not bare:
        return shifted, _zoned(detected)
    local, _ = _naive(ns, options, detected)
    return pl.select(pl.when(zoned).then(shifted).otherwise(local)).to_series(), "utc"


def _offset_ns(zone: "pl.Series") -> "pl.Series":
    import polars as pl

    digits = zone.str.replace_all("[^0-9+-]", "")
    hours = digits.str.slice(0, 3).cast(pl.Int64, strict=False).fill_null(0)
    minutes = digits.str.slice(3, 2).cast(pl.Int64, strict=False).fill_null(0)
    sign = pl.select(pl.when(digits.str.starts_with("-")).then(-1).otherwise(1)).to_series()
    return (hours * 3600 + sign * minutes * 60) * UNIT_NS["s"]


def _must_be_a_zone(name: str) -> None:
    """Also where no stamp needs it: a name that does not exist is a slip."""
    if name not in available_timezones():
        mend = nearest(name, sorted(available_timezones())) or "write it as UTC or Europe/Berlin"
        raise BadInput.at("zone", f"there is no time zone '{name}'", mend)
    try:
        ZoneInfo(name)
    except ZoneInfoNotFoundError as error:
        raise BadInput.at("zone", f"this system has no data for '{name}'", "install tzdata") from error


def _naive(ns: "pl.Series", options: ReadOptions, detected: dict[str, str]) -> "tuple[pl.Series, Clock]":
    """Stamps without a zone: read on the zone a person names, else kept as they are, on a clock without a name."""
    if options.zone is None:
        detected["zone"] = "not written: the clock is kept as it is, its offset from UTC unknown"
        return ns, "naive"
    import polars as pl

    stamps = ns.cast(pl.Datetime("ns"))
    local = stamps.dt.replace_time_zone(options.zone, ambiguous="earliest", non_existent="null")
    later = stamps.dt.replace_time_zone(options.zone, ambiguous="latest", non_existent="null")
    twice = int((local.dt.timestamp("ns") != later.dt.timestamp("ns")).sum())
    detected["zone"] = f"{options.zone}, as told" + (
        f"; {twice} stamps in the doubled hour read as the first" if twice else ""
    )
    return local.dt.timestamp("ns"), "utc"


def _zoned(detected: dict[str, str]) -> Clock:
    detected["zone"] = "written in each stamp"
    return "utc"
