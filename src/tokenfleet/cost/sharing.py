"""Who pays for what: one bill split over tenants (or features, tiers, models), to the cent.

Busy lines go to those whose tokens caused them. Headroom, idle time and spare replicas are lines of their own: what is
kept for everybody is not hidden in anybody's price. A second view, fully loaded, shares them out by what each reserved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.cost.rounding import in_cents
from tokenfleet.cost.work import RequestWork
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Bill
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Ints

Part = Literal["input", "cached", "output", "headroom", "idle", "spare"]
"""A line of the bill; ``input`` is input that no cache served."""
BUSY: tuple[Part, ...] = ("input", "cached", "output")
KEPT: tuple[Part, ...] = ("headroom", "idle", "spare")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """What somebody used of a shared fleet."""

    input_tokens: int = 0
    """Input that no cache served."""
    cached_tokens: int = 0
    output_tokens: int = 0
    request_count: int = 0
    work_s: Mapping[Part, float] | None = None
    """Gpu time by busy line, which is a fairer key than tokens; only its ratios count. ``None`` where nobody knows."""

    def of(self, part: Part) -> int:
        """Tokens behind a busy line."""
        return {"input": self.input_tokens, "cached": self.cached_tokens, "output": self.output_tokens}[part]

    def weight(self, part: Part) -> Fraction:
        """What a busy line is shared by: gpu time where it is known, else tokens."""
        return Fraction(self.of(part)) if self.work_s is None else Fraction(self.work_s[part])

    def times(self, factor: float) -> "TokenCounts":
        """The same use for longer, in whole requests and tokens; what there was stays at least one."""

        def more(count: int) -> int:
            return max(round(count * factor), 1) if count else 0

        return replace(
            self,
            input_tokens=more(self.input_tokens),
            cached_tokens=more(self.cached_tokens),
            output_tokens=more(self.output_tokens),
            request_count=more(self.request_count),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLine:
    """One amount of an invoice: a kind of tokens of one tenant, or what nobody used."""

    key: str
    """Tenant, feature or whatever the usage was counted by; empty for what nobody used."""
    part: Part
    cents: int
    token_count: int | None
    """``None`` where the line is not about tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """A bill in whole cents. All lines together are the total, to the cent."""

    lines: tuple[InvoiceLine, ...]
    total_cents: int
    loaded_cents: Mapping[str, int] | None
    """The whole bill by tenant, what nobody used shared out by what each reserved; ``None`` where nobody said."""
    by_gpu_time: bool = False
    """The busy lines are shared by gpu time, not by tokens."""

    def busy_cents(self, key: str) -> int:
        """What the tokens of one tenant cost."""
        return sum(line.cents for line in self.lines if line.key == key and line.part in BUSY)

    def part_cents(self, part: Part) -> int:
        """One line of the bill over all tenants."""
        return sum(line.cents for line in self.lines if line.part == part)


def name_of_nobody(names: Sequence[str]) -> str:
    """What requests without a tenant are counted under: ``unknown``, or ``nobody`` where a tenant has that name."""
    return "nobody" if "unknown" in names else "unknown"


def usage_by_key(
    record: RunRecord, key: Ints, names: Sequence[str], *, work: RequestWork | None = None
) -> dict[str, TokenCounts]:
    """Counts the tokens of finished requests by tenant, feature or any other label.

    Args:
        record: the run.
        key: for each request an index into ``names``; -1 is unknown and counted under :func:`name_of_nobody`.
        names: what the indexes stand for.
        work: gpu time of each request, to share the bill by time instead of tokens.

    Raises:
        ValueError: a key column that is not as long as the run, or an index beyond the names.
    """
    if len(key) != len(record.arrival_s) or (len(key) and int(key.max()) >= len(names)):
        raise ValueError(f"{len(key)} keys of {len(names)} names for {len(record.arrival_s)} requests")
    done = record.status == Status.FINISHED
    found = {}
    for index, name in [*enumerate(names), (-1, name_of_nobody(names))]:
        mine = done & (key == index)
        if index >= 0 or mine.any():
            cached = int(record.cached_tokens[mine].sum(dtype=np.int64))
            found[name] = TokenCounts(
                input_tokens=int(record.input_tokens[mine].sum(dtype=np.int64)) - cached,
                cached_tokens=cached,
                output_tokens=int(record.output_tokens[mine].sum(dtype=np.int64)),
                request_count=int(mine.sum()),
                work_s=None if work is None else _work_of(work, mine),
            )
    return found


def _work_of(work: RequestWork, mine: npt.NDArray[np.bool_]) -> dict[Part, float]:
    return {
        "input": float(work.input_s[mine].sum()),
        "cached": float(work.cached_s[mine].sum()),
        "output": float(work.output_s[mine].sum()),
    }


def invoice(
    bill: Bill,
    usage: Mapping[str, TokenCounts],
    *,
    hours: float = 1.0,
    reserved: Mapping[str, float] | None = None,
) -> Invoice:
    """Splits a bill over those who used the fleet; all lines are the bill, to the cent.

    Each busy line (input, cached, output) is shared by gpu time spent on it where everybody's is known, else by tokens
    of its kind, so the split adds up however tenants are grouped. Headroom, idle and spare stay lines of their own.

    Args:
        bill: one hour of the fleet at its mean load.
        usage: what each used in that time, or in any longer time with the same mix.
        hours: hours billed, > 0.
        reserved: what each reserved (gpus, or tokens a second at the peak hour): shares out the three in
            ``loaded_cents``. Usage is no stand-in for it: whoever made the fleet large is who pays for it to be there.

    Raises:
        BadInput: a line of the bill that nobody's tokens explain, negative counts, gpu time known of some only, or
            reservations that do not name everybody.
    """
    amounts = _exact(bill, usage, Fraction(hours))
    cents = in_cents(amounts)
    lines = tuple(
        InvoiceLine(key=key, part=part, cents=cents[key, part], token_count=usage[key].of(part) if key else None)
        for key, part in amounts
    )
    return Invoice(
        lines=lines,
        total_cents=sum(cents.values()),
        loaded_cents=None if reserved is None else _loaded(cents, usage, reserved),
        by_gpu_time=any(used.work_s is not None for used in usage.values()),
    )


def reserved_peak(
    load: npt.NDArray[np.float64], names: Sequence[str], *, quantile_fraction: float = 0.95
) -> dict[str, float]:
    """What each tenant reserves: the quantile of its load in the hour of the day when the whole fleet is fullest.

    Args:
        load: shape (day, hour of day, tenant), in one unit (gpus, tokens a second).
        names: of the tenants.
        quantile_fraction: of the days.

    Returns:
        The load by name, in the unit given.
    """
    by_hour = load.sum(axis=2).mean(axis=0)
    fullest = int(np.argmax(by_hour))
    peaks = np.quantile(load[:, fullest, :], quantile_fraction, axis=0)
    return {name: float(peak) for name, peak in zip(names, peaks, strict=True)}


def _exact(bill: Bill, usage: Mapping[str, TokenCounts], hours: Fraction) -> dict[tuple[str, Part], Fraction]:
    lines: dict[Part, Fraction] = {
        "input": Fraction(bill.input_usd_per_hour) * hours,
        "cached": Fraction(bill.cached_usd_per_hour) * hours,
        "output": Fraction(bill.output_usd_per_hour) * hours,
        "headroom": Fraction(bill.headroom_usd_per_hour) * hours,
        "idle": Fraction(bill.idle_usd_per_hour) * hours,
        "spare": Fraction(bill.spare_usd_per_hour) * hours,
    }
    if len({used.work_s is None for used in usage.values()}) > 1:
        raise BadInput.at(
            "usage", "gpu time is known of some and not of others", "give it for all of them, or for none"
        )
    amounts: dict[tuple[str, Part], Fraction] = {}
    for part in BUSY:
        weights = {key: used.weight(part) for key, used in usage.items()}
        if any(weight < 0 for weight in weights.values()):
            raise BadInput.at(f"usage.{part}", "fewer than 0 tokens", "give counts of 0 or more")
        whole = sum(weights.values(), Fraction(0))
        if not whole and lines[part]:
            raise BadInput.at(
                f"usage.{part}",
                f"nobody used {part} tokens, while ${float(lines[part]):.2f} of the bill went into them",
                "count the usage in the time of the bill",
            )
        amounts |= {(key, part): lines[part] * each / whole if whole else Fraction(0) for key, each in weights.items()}
    return amounts | {("", part): lines[part] for part in KEPT}


def _loaded(
    cents: Mapping[tuple[str, Part], int], usage: Mapping[str, TokenCounts], reserved: Mapping[str, float]
) -> dict[str, int]:
    """What each pays for its work, to the cent as its lines say, and its part of the cents of the three."""
    if set(reserved) != set(usage) or any(each < 0.0 for each in reserved.values()) or not sum(reserved.values()):
        raise BadInput.at(
            "reserved",
            f"names {sorted(reserved)} for usage of {sorted(usage)}",
            "give each of them what it reserved, 0 or more, and somebody more than 0",
        )
    kept = Fraction(sum(cents["", part] for part in KEPT), 100)
    whole = sum((Fraction(each) for each in reserved.values()), Fraction(0))
    added = in_cents({key: kept * Fraction(reserved[key]) / whole for key in usage})
    return {key: sum(cents[key, part] for part in BUSY) + added[key] for key in usage}
