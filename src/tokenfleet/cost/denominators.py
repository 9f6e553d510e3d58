"""Unit costs, each with its denominator in the name: what one request, user or finished task costs."""

from collections.abc import Mapping

from tokenfleet.domain.plan import Bill
from tokenfleet.domain.records import dataclass

_TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """One bill over one denominator, without and with what nobody used. Of an hour, where the bill is of one."""

    name: str
    """``usd_per_request``, ``usd_per_million_output_tokens``: the denominator is always said."""
    count: float
    busy_usd: float | None
    """Only the work, as on a full fleet: what one more would cost while there is room. ``None`` where nothing was
    counted."""
    loaded_usd: float | None
    """The whole bill, headroom, idle time and spare replicas too: what to compare with an API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCost:
    """What it takes to get a task done when attempts can fail."""

    attempts_per_task: float
    succeeded_fraction: float
    """Tasks done without a person."""
    usd_per_task: float
    """Attempts and hand work, over all tasks."""
    usd_per_successful_task: float | None
    """The same dollars over tasks done without a person; ``None`` when there are none."""


def unit_costs(*, busy_usd: float, loaded_usd: float, counts: Mapping[str, float]) -> tuple[UnitCost, ...]:
    """A bill over each denominator.

    Args:
        busy_usd: the part of the bill that paid for work, 0 to ``loaded_usd``.
        loaded_usd: the whole bill of the same time.
        counts: what was counted in that time, by singular name: ``request``, ``successful_task``, ``user``,
            ``premium_tier_user``; names that end in ``tokens`` are given per million.

    Returns:
        One unit cost per count, in their order.

    Raises:
        ValueError: a busy part outside the bill, or a negative count.
    """
    if not 0.0 <= busy_usd <= loaded_usd or any(count < 0.0 for count in counts.values()):
        raise ValueError(f"busy {busy_usd} of {loaded_usd} dollars, counts {dict(counts)}")
    made = []
    for name, count in counts.items():
        tokens = name.endswith(_TOKENS)
        scale = 1e6 if tokens else 1.0
        made.append(
            UnitCost(
                name=f"usd_per_million_{name}" if tokens else f"usd_per_{name}",
                count=count,
                busy_usd=busy_usd / count * scale if count else None,
                loaded_usd=loaded_usd / count * scale if count else None,
            )
        )
    return tuple(made)


def task_cost(
    usd_per_attempt: float,
    *,
    success_fraction: float,
    most_attempts_count: int = 1,
    hand_work_usd: float = 0.0,
) -> TaskCost:
    """Cost of a task that is tried again until it succeeds, and done by hand when it never does.

    With s the chance of an attempt and n attempts at most, ``(1 - (1 - s)^n) / s`` attempts are made on average and
    ``1 - (1 - s)^n`` of the tasks succeed. Without hand work a success costs ``usd / s``, however many tries are
    allowed: retries do not change the price of a success, only how many there are.

    Args:
        usd_per_attempt: tokens and tools of one attempt, failed ones included.
        success_fraction: s, of attempts that give a usable answer (failed tool calls count as failures), 0 to 1.
        most_attempts_count: n, >= 1.
        hand_work_usd: what a person's time costs for a task that the attempts did not solve.

    Raises:
        ValueError: a share outside 0..1, or no attempt.
    """
    if not 0.0 <= success_fraction <= 1.0 or most_attempts_count < 1:
        raise ValueError(f"success {success_fraction}, attempts {most_attempts_count}")
    failed = (1.0 - success_fraction) ** most_attempts_count
    attempts = (1.0 - failed) / success_fraction if success_fraction else float(most_attempts_count)
    total = attempts * usd_per_attempt + failed * hand_work_usd
    done = 1.0 - failed
    return TaskCost(
        attempts_per_task=attempts,
        succeeded_fraction=done,
        usd_per_task=total,
        usd_per_successful_task=total / done if done > 0.0 else None,
    )


def units_of(bill: Bill) -> tuple[UnitCost, ...]:
    """What each unit of an hour's work costs, by its work alone and fully loaded.

    Headroom, idle time and spare replicas are shared over the kinds of tokens as their work is, so loaded prices times
    their tokens are the whole bill, as the busy ones are its busy lines. A request pays its part of all.

    Returns:
        Per million input (no cache served them), cached and output tokens, and per request; those there were.
    """
    busy = bill.input_usd_per_hour + bill.cached_usd_per_hour + bill.output_usd_per_hour
    if not busy:
        return ()
    dearer = bill.total_usd_per_hour / busy
    kinds = (
        ("input", bill.input_usd_per_hour, bill.usd_per_million_input_tokens),
        ("cached", bill.cached_usd_per_hour, bill.usd_per_million_cached_tokens),
        ("output", bill.output_usd_per_hour, bill.usd_per_million_output_tokens),
    )
    found = [
        UnitCost(
            name=f"usd_per_million_{kind}_tokens",
            count=line / price * 1e6,
            busy_usd=price,
            loaded_usd=price * dearer,
        )
        for kind, line, price in kinds
        if price
    ]
    if bill.usd_per_request:
        found.append(
            UnitCost(
                name="usd_per_request",
                count=bill.total_usd_per_hour / bill.usd_per_request,
                busy_usd=bill.usd_per_request / dearer,
                loaded_usd=bill.usd_per_request,
            )
        )
    return tuple(found)
