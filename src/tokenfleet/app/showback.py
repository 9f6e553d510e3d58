"""Who pays for a running fleet, from what its gpus and its gateway count."""

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from tokenfleet import cost
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

Block = tuple[str, Sequence[str]]
_TOKENS = tuple(f"{kind}_tokens" for kind in cost.KINDS)
_COUNTERS = ("busy_gpu_s", *_TOKENS)
_HOUR_S = 3600.0
_PARTS: tuple[cost.Part, ...] = ("headroom", "idle", "spare")
_MOST = 1e15
"""No cell is larger: a sum of such is exact, and no gpu and no gateway counts that far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Showback:
    """The invoice of the time counted."""

    counted: cost.Counted
    invoice: cost.Invoice
    hours: float
    tenants: tuple[str, ...]
    """Dearest first."""


def showback(
    counters: Path,
    usage: Path,
    *,
    interval_s: float,
    gpu_count: int,
    usd_per_gpu_hour: float,
    spare_gpu_count: int = 0,
) -> Showback:
    """Shares the price of the time counted over tenants, by what each kind of token takes of the gpus.

    Args:
        counters: CSV, a row for each interval: ``busy_gpu_s``, ``input_tokens`` (no cache served them),
            ``cached_tokens``, ``output_tokens``.
        usage: CSV, a row for each tenant: ``tenant`` and the same tokens, in all that time.
        interval_s: of one row of ``counters``.
        gpu_count: gpus paid for, the spare ones included.
        usd_per_gpu_hour: price of each.
        spare_gpu_count: those kept for the day one fails.

    Raises:
        BadInput: a file that cannot be read, usage beyond what was counted, or counters that tell nothing.
    """
    rows, tenants = _numbers(counters, _COUNTERS), _numbers(usage, _TOKENS, key="tenant")
    columns = np.array([[row[name] for name in _COUNTERS] for row in rows.values()])
    try:
        counted = cost.bill_of_counters(
            columns[:, 0],
            columns[:, 1:],
            interval_s=interval_s,
            gpu_count=gpu_count,
            usd_per_gpu_hour=usd_per_gpu_hour,
            spare_gpu_count=spare_gpu_count,
        )
    except BadInput as error:
        places = {"counters": str(counters), "gpus": "--gpus"}
        raise BadInput(replace(each, where=places.get(each.where, each.where)) for each in error.problems) from None
    hours = len(rows) * interval_s / _HOUR_S
    used = _usage(usage, tenants, dict(zip(_TOKENS, columns[:, 1:].sum(axis=0), strict=True)))
    made = cost.invoice(counted.bill, used, hours=hours)
    dearest = tuple(sorted(used, key=lambda name: (-made.busy_cents(name), name)))
    return Showback(counted=counted, invoice=made, hours=hours, tenants=dearest)


def _usage(path: Path, rows: dict[str, dict[str, float]], counted: Mapping[str, float]) -> dict[str, cost.TokenCounts]:
    """Tokens of each tenant, and of nobody what was counted beyond them."""
    left = {name: round(counted[name] - sum(row[name] for row in rows.values())) for name in _TOKENS}
    over = [name for name in _TOKENS if left[name] < 0]
    if over:
        raise BadInput(
            Problem(f"{path}: {name}", f"{-left[name]:,} more than were counted", "give usage of the same time")
            for name in over
        )
    if any(left.values()):
        rows[cost.name_of_nobody(tuple(rows))] = {name: float(count) for name, count in left.items()}
    return {
        tenant: cost.TokenCounts(
            input_tokens=round(row["input_tokens"]),
            cached_tokens=round(row["cached_tokens"]),
            output_tokens=round(row["output_tokens"]),
        )
        for tenant, row in rows.items()
    }


def _numbers(path: Path, columns: Sequence[str], key: str | None = None) -> dict[str, dict[str, float]]:
    """Rows of a CSV by their key, or by their line; every cell a number of 0 or more."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            head = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput.at(str(path), f"cannot be read: {error}", "give a CSV file with a head") from None
    missing = [name for name in (*([key] if key else []), *columns) if name not in head]
    if missing or not rows:
        what = f"lacks the columns {', '.join(missing)}" if missing else "has no rows"
        raise BadInput.at(str(path), what, f"give {', '.join((*([key] if key else []), *columns))}")
    found: dict[str, dict[str, float]] = {}
    problems: list[Problem] = []
    for line, row in enumerate(rows, start=2):
        odd = list(_odd(f"{path}:{line}", row, columns, key, found))
        found[str(line) if key is None else str(row[key])] = (
            {} if odd else {name: float(row[name] or "") for name in columns}
        )
        problems += odd
    if problems:
        raise BadInput(problems)
    return found


def _odd(
    where: str, row: Mapping[str | None, str | None], columns: Sequence[str], key: str | None, before: Collection[str]
) -> Iterator[Problem]:
    """What is wrong with a row of a CSV."""
    if None in row:
        mend = "write numbers without marks of thousands, and put a name that has a comma in quotes"
        yield Problem(where, "more cells than the head has", mend)
        return
    if key is not None:
        name = row[key] or ""
        if not name.strip():
            yield Problem(where, f"{key} is empty", "name it; what is counted for nobody comes from the counters")
        elif name in before:
            yield Problem(where, f"{key} {name!r} again", "add its rows up")
    for column in columns:
        if not _is_number(row[column]):
            told = "missing" if row[column] is None else repr(row[column])
            yield Problem(where, f"{column} is {told}", f"give a number of 0 or more, up to {_MOST:g}")


def _is_number(text: str | None) -> bool:
    try:
        return 0.0 <= float(text or "") <= _MOST
    except ValueError:
        return False


def showback_document(found: Showback) -> dict[str, object]:
    """Everything that was found, ready for JSON; the tenants and what nobody used are the total, to the cent."""
    made = found.invoice
    return {
        "hours": found.hours,
        "total_usd": made.total_cents / 100,
        "tenants": [
            {"tenant": name, **_by_part(made, name), "busy_usd": made.busy_cents(name) / 100} for name in found.tenants
        ],
        **{f"{part}_usd": made.part_cents(part) / 100 for part in _PARTS},
        "gpu_s_per_million_tokens": found.counted.gpu_s_per_million_tokens,
        "anyway_fraction": found.counted.anyway_fraction,
        "fit_error_fraction": found.counted.fit_error_fraction,
        "bill": asdict(found.counted.bill),
    }


def _by_part(made: cost.Invoice, tenant: str) -> dict[str, float]:
    return {f"{line.part}_usd": line.cents / 100 for line in made.lines if line.key == tenant}


def showback_blocks(found: Showback) -> list[Block]:
    """The blocks a terminal shows."""
    made, counted = found.invoice, found.counted
    weights = ", ".join(f"{kind} {value:,.3g}" for kind, value in counted.gpu_s_per_million_tokens.items())
    paid = [f"{name} {_usd(made.busy_cents(name))}" for name in found.tenants]
    kept = [f"{part} {_usd(made.part_cents(part))}" for part in _PARTS]
    return [
        ("Invoice", [f"{_usd(made.total_cents)} for {found.hours:,.4g} hours", ", ".join(paid), ", ".join(kept)]),
        (
            "Weights",
            [
                f"GPU-seconds of a million tokens: {weights}",
                f"{counted.anyway_fraction:.0%} of the busy time goes with no token and is shared like the rest",
                f"the tokens explain an interval to {counted.fit_error_fraction:.1%} on average",
                *_unseen(counted.gpu_s_per_million_tokens),
            ],
        ),
        ("Assumed", ["Busy is what the counter says: how full a busy GPU is it does not tell. A replay does."]),
    ]


def _unseen(weights: Mapping[str, float]) -> Iterator[str]:
    free = [f"{kind} tokens" for kind, value in weights.items() if not value]
    if free:
        yield f"no busy time follows {' and '.join(free)}: their tenants pay nothing for them"


def _usd(cents: int) -> str:
    return f"${cents / 100:,.2f}"
