"""Claims about speed, money and load, checked with the arithmetic that decides them."""

from dataclasses import dataclass

from tokenfleet.cost import break_even_utilization_fraction, usd_per_million
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.floors import decode_step_s, pool_tokens

TOLERANCE = 0.05
"""Claims are rounded when they are told: one that misses by less than this share stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One claim, held against arithmetic."""

    claim: str
    """In words."""
    supported: bool
    claimed: float
    found: float | None
    """The same figure as reckoned; ``None`` where it does not exist."""
    arithmetic: tuple[str, ...]
    """Each step, with its numbers."""


def little(
    *, sequence_count: int, rate_per_s: float, ttft_s: float, tpot_s: float, output_tokens: float | None
) -> Checked:
    """A contract of sequences, rate and latencies: Little's law says how long its requests may be.

    ``in flight = rate * (ttft + (output - 1) * tpot)`` must not exceed the sequences that run at once.

    Args:
        sequence_count: sequences that run at once, > 0.
        rate_per_s: requests per second, > 0.
        ttft_s: mean time to first token, >= 0.
        tpot_s: mean time per output token after the first, > 0.
        output_tokens: mean output claimed; ``None`` asks only how long outputs may be.
    """
    residence_s = sequence_count / rate_per_s
    most = 1.0 + (residence_s - ttft_s) / tpot_s
    lines = [
        f"{sequence_count} sequences / {rate_per_s:g} requests/s = {residence_s:.3g} s that a request may stay "
        "(Little's law)",
        f"({residence_s:.3g} s - {words.seconds(ttft_s)}) / {words.seconds(tpot_s)} + 1 = {most:.1f} output tokens",
    ]
    if output_tokens is not None:
        stay_s = ttft_s + (output_tokens - 1.0) * tpot_s
        lines.append(
            f"at {output_tokens:g} output tokens a request stays {stay_s:.3g} s, so {rate_per_s * stay_s:.1f} are "
            "in flight"
        )
    # Without a length nothing is claimed but that some request fits.
    wanted = 1.0 if output_tokens is None else output_tokens
    asked = "requests" if output_tokens is None else f"requests of {output_tokens:g} output tokens"
    return Checked(
        claim=f"{sequence_count} sequences carry {rate_per_s:g} {asked} a second",
        supported=most >= 1.0 and wanted <= most * (1.0 + TOLERANCE),
        claimed=wanted,
        found=most if most >= 1.0 else None,
        arithmetic=tuple(lines),
    )


def token_price(*, usd_per_hour: float, tokens_per_s: float, busy_fraction: float, claimed: float) -> Checked:
    """A price per million tokens, from the bill and the tokens that are really served.

    Args:
        usd_per_hour: the whole bill.
        tokens_per_s: while busy, > 0.
        busy_fraction: share of the paid time with work, above 0 to 1.
        claimed: dollars per million tokens.
    """
    found = usd_per_million(usd_per_hour, tokens_per_s, busy_fraction=busy_fraction)
    served = tokens_per_s * 3600.0 * busy_fraction / 1e6
    return Checked(
        claim=f"at most ${claimed:g} per million tokens",
        supported=found is not None and found <= claimed * (1.0 + TOLERANCE),
        claimed=claimed,
        found=found,
        arithmetic=(
            f"{tokens_per_s:,.0f} tokens/s x 3,600 s x {busy_fraction:.0%} busy = {served:.3g} million tokens an hour",
            f"${usd_per_hour:.2f} / {served:.3g} million = "
            + ("no tokens, so no price" if found is None else f"${found:.3g} per million"),
        ),
    )


def break_even(*, own_usd_per_gpu_hour: float, rent_usd_per_gpu_hour: float, claimed_fraction: float) -> Checked:
    """From which utilisation owning beats renting by the hour: own price over rent.

    The claim is a point, so it is wrong on either side: who waits for a higher one rents too long.

    Args:
        own_usd_per_gpu_hour: of an available hour, everything included, >= 0.
        rent_usd_per_gpu_hour: > 0.
        claimed_fraction: the utilisation claimed.
    """
    found = break_even_utilization_fraction(own_usd_per_gpu_hour, rent_usd_per_gpu_hour)
    verdict = "" if found <= 1.0 else ": above 100 %, so owning never wins"
    return Checked(
        claim=f"owning begins to win at {claimed_fraction:.0%} busy",
        supported=found <= 1.0 and abs(found - claimed_fraction) <= TOLERANCE * claimed_fraction,
        claimed=claimed_fraction,
        found=found,
        arithmetic=(
            f"${own_usd_per_gpu_hour:g} per owned hour / ${rent_usd_per_gpu_hour:g} per rented hour = "
            f"{found:.0%}{verdict}",
        ),
    )


def speed_up(
    *, before_per_s: float, before_gpu_count: int, after_per_s: float, after_gpu_count: int, claimed: float
) -> Checked:
    """A speed-up, brought to equal GPUs.

    Args:
        before_per_s: tokens or requests per second, within the same latency limits as after.
        before_gpu_count: GPUs that took.
        after_per_s: the same afterwards.
        after_gpu_count: GPUs that took.
        claimed: factor.
    """
    before, after = before_per_s / before_gpu_count, after_per_s / after_gpu_count
    found = after / before
    return Checked(
        claim=f"at least {claimed:g} times as fast",
        supported=found >= claimed * (1.0 - TOLERANCE),
        claimed=claimed,
        found=found,
        arithmetic=(
            f"before {before_per_s:,.6g}/s on {before_gpu_count} GPUs = {before:,.4g}/s per GPU",
            f"after  {after_per_s:,.6g}/s on {after_gpu_count} GPUs = {after:,.4g}/s per GPU",
            f"{after:,.4g} / {before:,.4g} = {found:.3g} times at equal GPUs "
            f"({after_per_s / before_per_s:.3g} times if GPUs are not counted)",
        ),
    )


def saving(
    *, before_usd: float, before_units: float, after_usd: float, after_units: float, claimed_fraction: float
) -> Checked:
    """A saving, brought to equal work.

    Args:
        before_usd: bill.
        before_units: what was served for it (tokens, requests, successful tasks), > 0.
        after_usd: bill afterwards.
        after_units: what was served for that, > 0.
        claimed_fraction: share saved.
    """
    before, after = before_usd / before_units, after_usd / after_units
    found = 1.0 - after / before
    return Checked(
        claim=f"at least {claimed_fraction:.0%} saved",
        supported=found >= claimed_fraction - TOLERANCE,
        claimed=claimed_fraction,
        found=found,
        arithmetic=(
            f"before ${before_usd:,.6g} / {before_units:,.6g} = ${before:.4g} each",
            f"after  ${after_usd:,.6g} / {after_units:,.6g} = ${after:.4g} each",
            f"1 - {after:.4g} / {before:.4g} = {found:.0%} for the same work "
            f"({1 - after_usd / before_usd:.0%} of the bill)",
        ),
    )


def decode_speed_up(
    before: ReplicaPhysics, after: ReplicaPhysics, *, context_tokens: int, sequence_count: int | None, claimed: float
) -> Checked:
    """A speed-up of decoding by another precision or layout, from the step time of both, per GPU.

    Args:
        before: replica as it is.
        after: replica as claimed.
        context_tokens: mean context of a sequence, > 0.
        sequence_count: sequences in both; ``None``: as many as each holds, which is what memory saved is good for.
        claimed: factor.
    """
    figures = []
    for name, replica in (("before", before), ("after ", after)):
        count = sequence_count or most_sequences(replica, context_tokens)
        step_s = decode_step_s(replica, count, context_tokens) if count else 0.0
        gpus = replica.deployment.layout.gpu_count
        rate = count / step_s / gpus if count else 0.0
        figures.append(
            (
                rate,
                f"{name} {words.layout(replica.deployment)}: {count} sequences in {words.seconds(step_s)} a "
                f"step = {rate:,.0f} tokens/s per GPU",
            )
        )
    (slow, first), (fast, second) = figures
    found = fast / slow if slow else None
    factor = max(before.band.step_time_factor, after.band.step_time_factor)
    return Checked(
        claim=f"at least {claimed:g} times the decode throughput",
        supported=found is not None and found >= claimed * (1.0 - TOLERANCE),
        claimed=claimed,
        found=found,
        arithmetic=(
            first,
            second,
            "one of them holds no sequence"
            if found is None
            else f"{fast:,.0f} / {slow:,.0f} = {found:.3g} times at "
            f"{words.tokens(context_tokens)} of context; each step time may be wrong by a factor of {factor:.3g}",
        ),
    )


def most_sequences(replica: ReplicaPhysics, context_tokens: int) -> int:
    """Sequences of that context that fit into KV blocks and slots."""
    blocks = -(-context_tokens // replica.kv_block_tokens) + replica.kv_fixed_block_count
    if context_tokens > pool_tokens(replica):
        return 0
    return min(replica.deployment.engine.max_sequence_count, replica.kv_block_count // blocks)
