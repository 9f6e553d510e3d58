"""Claims about speed, money and load, checked with the arithmetic that decides them."""

from collections.abc import Callable
from typing import Literal

from tokenfleet.cost import break_even_utilization_fraction, usd_per_million
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.equal_gpus import Carried, EqualGpus
from tokenfleet.planner.floors import decode_step_s, pool_tokens

TOLERANCE = 0.05
"""Claims are rounded when they are told: one that misses by less than this share stands."""
Position = Literal["below", "within", "above"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A figure as somebody told it, or the range it is said to lie in."""

    low: float
    high: float | None = None
    """``None``: one figure, of which each claim says on which side it errs."""

    def position(self, found: float | None, slack: Callable[[float], float]) -> Position | None:
        """Where a figure lies in the range, edges forgiven by ``slack``; ``None`` where either is missing."""
        if self.high is None or found is None:
            return None
        if found < self.low - slack(self.low):
            return "below"
        return "above" if found > self.high + slack(self.high) else "within"

    def told(self, shown: Callable[[float], str], side: str) -> str:
        """``at least 2``, or ``2 to 7``."""
        return f"{side} {shown(self.low)}" if self.high is None else f"{shown(self.low)} to {shown(self.high)}"


def _share(value: float) -> float:
    return TOLERANCE * value


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One claim, held against arithmetic."""

    claim: str
    """In words."""
    supported: bool
    claimed: Claimed
    found: float | None
    """The same figure as reckoned; ``None`` where it does not exist."""
    arithmetic: tuple[str, ...]
    """Each step, with its numbers."""
    position: Position | None = None
    """Of a range: where the figure lies in it."""


def little(
    *, sequence_count: int, rate_per_s: float, ttft_s: float, tpot_s: float, output_tokens: float | None
) -> Checked:
    """A contract of sequences, rate and latencies: Little's law says how long its requests may be.

    ``in flight = rate * (ttft + (output - 1) * tpot)`` must not exceed the sequences that run at once. No rounding is
    forgiven, as where it does the queue grows for ever.

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
            f"in flight{'' if output_tokens <= most else f', more than {sequence_count}: the queue grows for ever'}"
        )
    # Without a length nothing is claimed but that some request fits.
    wanted = 1.0 if output_tokens is None else output_tokens
    asked = "requests" if output_tokens is None else f"requests of {output_tokens:g} output tokens"
    return Checked(
        claim=f"{sequence_count} sequences carry {rate_per_s:g} {asked} a second",
        # Nothing is forgiven: beyond this length the queue grows for ever.
        supported=most >= 1.0 and wanted <= most,
        claimed=Claimed(low=wanted),
        found=most if most >= 1.0 else None,
        arithmetic=tuple(lines),
    )


def token_price(*, usd_per_hour: float, tokens_per_s: float, busy_fraction: float, claimed: Claimed) -> Checked:
    """A price per million tokens, from the bill and the tokens that are really served.

    Args:
        usd_per_hour: the whole bill.
        tokens_per_s: while busy, > 0.
        busy_fraction: share of the paid time with work, above 0 to 1.
        claimed: dollars per million tokens, or their range.
    """
    found = usd_per_million(usd_per_hour, tokens_per_s, busy_fraction=busy_fraction)
    served = tokens_per_s * 3600.0 * busy_fraction / 1e6
    position = claimed.position(found, _share)
    cheap = found is not None and found <= claimed.low * (1.0 + TOLERANCE)
    return Checked(
        claim=f"{claimed.told(_usd, 'at most')} per million tokens",
        supported=cheap if claimed.high is None else position == "within",
        claimed=claimed,
        found=found,
        position=position,
        arithmetic=(
            f"{tokens_per_s:,.0f} tokens/s x 3,600 s x {busy_fraction:.0%} busy = {served:.3g} million tokens an hour",
            f"${usd_per_hour:.2f} / {served:.3g} million = "
            + ("no tokens, so no price" if found is None else f"${found:.3g} per million"),
        ),
    )


def _usd(value: float) -> str:
    return f"${value:g}"


def break_even(*, own_usd_per_gpu_hour: float, rent_usd_per_gpu_hour: float, claimed_fraction: Claimed) -> Checked:
    """From which utilisation owning beats renting by the hour: own price over rent.

    The claim is a point, so it is wrong on either side: who waits for a higher one rents too long.

    Args:
        own_usd_per_gpu_hour: of an available hour, everything included, >= 0.
        rent_usd_per_gpu_hour: > 0.
        claimed_fraction: the utilisation claimed, or its range.
    """
    found = break_even_utilization_fraction(own_usd_per_gpu_hour, rent_usd_per_gpu_hour)
    verdict = "" if found <= 1.0 else ": above 100 %, so owning never wins"
    point = claimed_fraction.low
    position = claimed_fraction.position(found, _share)
    near = abs(found - point) <= TOLERANCE * point
    return Checked(
        claim=f"owning begins to win {claimed_fraction.told(_percent, 'at')} busy",
        supported=found <= 1.0 and (near if claimed_fraction.high is None else position == "within"),
        position=position,
        claimed=claimed_fraction,
        found=found,
        arithmetic=(
            f"${own_usd_per_gpu_hour:g} per owned hour / ${rent_usd_per_gpu_hour:g} per rented hour = "
            f"{found:.0%}{verdict}",
        ),
    )


def _percent(value: float) -> str:
    return f"{value:.0%}"


def speed_up(
    *, before_per_s: float, before_gpu_count: int, after_per_s: float, after_gpu_count: int, claimed: Claimed
) -> Checked:
    """A speed-up, brought to equal GPUs.

    Args:
        before_per_s: tokens or requests per second, within the same latency limits as after.
        before_gpu_count: GPUs that took.
        after_per_s: the same afterwards.
        after_gpu_count: GPUs that took.
        claimed: factor, or its range.
    """
    before, after = before_per_s / before_gpu_count, after_per_s / after_gpu_count
    found = after / before
    return Checked(
        claim=f"{claimed.told(_plain, 'at least')} times as fast",
        supported=_fast_enough(found, claimed),
        position=claimed.position(found, _share),
        claimed=claimed,
        found=found,
        arithmetic=(
            f"before {before_per_s:,.6g}/s on {before_gpu_count} GPUs = {before:,.4g}/s per GPU",
            f"after  {after_per_s:,.6g}/s on {after_gpu_count} GPUs = {after:,.4g}/s per GPU",
            f"{after:,.4g} / {before:,.4g} = {found:.3g} times at equal GPUs "
            f"({after_per_s / before_per_s:.3g} times if GPUs are not counted)",
        ),
    )


def _plain(value: float) -> str:
    return f"{value:g}"


def _fast_enough(found: float | None, claimed: Claimed) -> bool:
    """At least one figure, or within a range."""
    if claimed.high is not None:
        return claimed.position(found, _share) == "within"
    return found is not None and found >= claimed.low * (1.0 - TOLERANCE)


def saving(
    *, before_usd: float, before_units: float, after_usd: float, after_units: float, claimed_fraction: Claimed
) -> Checked:
    """A saving, brought to equal work.

    Args:
        before_usd: bill.
        before_units: what was served for it (tokens, requests, successful tasks), > 0.
        after_usd: bill afterwards.
        after_units: what was served for that, > 0.
        claimed_fraction: share saved, or its range.
    """
    before, after = before_usd / before_units, after_usd / after_units
    found = 1.0 - after / before
    position = claimed_fraction.position(found, _share)
    enough = found >= claimed_fraction.low * (1.0 - TOLERANCE)
    return Checked(
        claim=f"{claimed_fraction.told(_percent, 'at least')} saved",
        supported=enough if claimed_fraction.high is None else position == "within",
        position=position,
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
    before: ReplicaPhysics, after: ReplicaPhysics, *, context_tokens: int, sequence_count: int | None, claimed: Claimed
) -> Checked:
    """A speed-up of decoding by another precision or layout, from the step time of both, per GPU.

    Args:
        before: replica as it is.
        after: replica as claimed.
        context_tokens: mean context of a sequence, > 0.
        sequence_count: sequences in both; ``None``: as many as each holds, which is what memory saved is good for.
        claimed: factor, or its range.
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
        claim=f"{claimed.told(_plain, 'at least')} times the decode throughput",
        supported=_fast_enough(found, claimed),
        position=claimed.position(found, _share),
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


def disaggregation(compared: EqualGpus, claimed: Claimed) -> Checked:
    """What prefill and decode apart carry over what one fleet carries on as many GPUs, within the same promise.

    Args:
        compared: Both, by replay.
        claimed: factor, or its range.

    Raises:
        BadInput: the demand is so thin that the densest replay of it fills neither, or not the one that decides.
    """
    found = compared.factor
    gpus = f"{compared.gpu_count} GPUs"
    together, apart = compared.together, compared.apart
    lines = [
        _carries(f"together, the best of {compared.together_count} fleets of {gpus}", together),
        _carries(f"apart, the best of {compared.apart_count} splits of {gpus}", apart),
    ]
    if found is None or together is None or apart is None:
        lines.append("one of them keeps the promise at no load")
    else:
        lines.append(
            f"{apart.rate_per_s:.3g} / {together.rate_per_s:.3g} = {found:.3g} times, each found to 3 % by "
            f"{compared.replayed_count} replays"
        )
    if apart is not None and together is not None and compared.usual != together:
        usual = compared.usual
        against = "nothing" if usual is None else f"{usual.rate_per_s:.3g}"
        more = "" if usual is None else f", which would make it {apart.rate_per_s / usual.rate_per_s:.3g} times"
        lines.append(f"with the engine's own size of steps the fleet would carry {against}{more}")
    supported = _fast_enough(found, claimed)
    if _is_open(compared, claimed, supported=supported):
        what = f"its demand is too thin to fill {gpus}: {lines[0]}; {lines[1]}"
        raise BadInput.at("--scenario", what, "give fewer --gpus, or a demand with more requests a second")
    return Checked(
        claim=f"{claimed.told(_plain, 'at least')} times the load at equal GPUs with prefill and decode apart",
        supported=supported,
        claimed=claimed,
        found=found,
        position=claimed.position(found, _share),
        arithmetic=tuple(lines),
    )


def _is_open(compared: EqualGpus, claimed: Claimed, *, supported: bool) -> bool:
    """Whether a load that nothing broke could still turn the verdict."""
    together, apart = compared.together, compared.apart
    if together is None or apart is None or not (together.at_least or apart.at_least):
        return False
    if together.at_least and apart.at_least:
        return True
    position = claimed.position(compared.factor, _share)
    if together.at_least:
        # The factor is no larger than found: below what is claimed it stays below.
        return supported or position == "above"
    return not supported if claimed.high is None else position != "above"


def _carries(who: str, carried: Carried | None) -> str:
    if carried is None:
        return f"{who}: none keeps the promise at any load"
    least = "at least " if carried.at_least else ""
    return f"{who}: {carried.said} keep the promise up to {least}{carried.rate_per_s:.3g} requests/s at the peak"


def most_sequences(replica: ReplicaPhysics, context_tokens: int) -> int:
    """Sequences of that context that fit into KV blocks and slots."""
    if context_tokens > pool_tokens(replica):
        return 0
    held = replica.kv_block_count // replica.sequence_blocks(context_tokens)
    return min(replica.deployment.engine.max_sequence_count, held)
