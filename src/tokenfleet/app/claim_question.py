"""What a claim says, by kind, and its check."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from tokenfleet.app.compose import Teller
from tokenfleet.app.pool_types import LinkName
from tokenfleet.app.quantities import Unreadable, parse_fraction, parse_positive, quoted
from tokenfleet.app.scenario_words import (
    Count,
    Duration,
    Fraction,
    GpuName,
    ModelName,
    Positive,
    Rate,
    Strict,
    Tokens,
    problem,
)
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout, Precision, ReplicaPhysics
from tokenfleet.planner import claims
from tokenfleet.planner.claims import Checked, Claimed

_RANGE: Final = re.compile(r"(?<=[\d%x])\s*(?:-|\u2013|\.\.|to)\s*(?=[$\d.])")


def _claimed(parse: Callable[[object], float], such_as: str) -> Callable[[object], Claimed]:
    """``2``, ``2x``, ``22%``, ``$0.15``, or a range of them as ``2-7x``; a unit at its end is meant for both ends."""

    def read(value: object) -> Claimed:
        parts = _RANGE.split(str(value).strip())
        bare = [part.strip().removeprefix("$").removesuffix("x") for part in parts]
        unit = "%" if bare[-1].endswith("%") else ""
        try:
            ends = [parse(part if part.endswith(unit) else part + unit) for part in bare]
        except Unreadable as error:
            # What was read may lack its sign or unit: a person is told what they wrote.
            read_part = next((part for part in bare if quoted(part) in error.what), None)
            what = error.what if read_part is None else error.what.replace(quoted(read_part), quoted(value))
            raise problem(what, f"{error.mend}, or a range such as {such_as}") from None
        if len(ends) > 2 or ends != sorted(ends):
            raise problem(f"{quoted(value)} is no range", f"write the lower end first: {such_as}")
        return Claimed(low=ends[0], high=ends[1] if len(ends) == 2 else None)

    return read


ClaimedFactor = Annotated[Claimed, BeforeValidator(_claimed(parse_positive, "2-7"))]
ClaimedFraction = Annotated[Claimed, BeforeValidator(_claimed(parse_fraction, "65-80%"))]


class ContractClaim(Strict):
    """So many sequences carry such a rate at such latencies."""

    kind: Literal["contract"]
    sequences: Count
    """Sequences that run at once."""
    rate: Rate
    """Requests per second."""
    ttft: Duration
    """Mean time to first token."""
    tpot: Duration
    """Mean time per output token."""
    output: Annotated[Positive, Field(ge=1.0)] | None = None
    """Mean output tokens, where claimed."""

    def check(self) -> Checked:
        """By Little's law."""
        return claims.little(
            sequence_count=self.sequences,
            rate_per_s=self.rate,
            ttft_s=self.ttft,
            tpot_s=self.tpot,
            output_tokens=self.output,
        )


class TokenPriceClaim(Strict):
    """A million tokens cost so much."""

    kind: Literal["token-price"]
    usd_per_hour: Positive
    """The whole bill of an hour."""
    tokens_per_s: Positive
    """Tokens per second while busy."""
    busy: Fraction = 1.0
    """Share of the paid time with work."""
    claimed: ClaimedFactor
    """Dollars per million tokens."""

    def check(self) -> Checked:
        """From the bill."""
        return claims.token_price(
            usd_per_hour=self.usd_per_hour,
            tokens_per_s=self.tokens_per_s,
            busy_fraction=self.busy,
            claimed=self.claimed,
        )


class BreakEvenClaim(Strict):
    """Owning wins from such a utilisation on."""

    kind: Literal["break-even"]
    own: Positive
    """Dollars per available hour of an owned GPU."""
    rent: Positive
    """Dollars per rented GPU-hour."""
    claimed: ClaimedFraction
    """Utilisation."""

    def check(self) -> Checked:
        """Own price over rent."""
        return claims.break_even(
            own_usd_per_gpu_hour=self.own, rent_usd_per_gpu_hour=self.rent, claimed_fraction=self.claimed
        )


class SpeedUpClaim(Strict):
    """So many times as fast."""

    kind: Literal["speed-up"]
    before: Positive
    """Tokens or requests per second before."""
    before_gpus: Count
    """GPUs that took."""
    after: Positive
    """The same afterwards."""
    after_gpus: Count
    """GPUs that took."""
    claimed: ClaimedFactor
    """Factor."""

    def check(self) -> Checked:
        """At equal GPUs."""
        return claims.speed_up(
            before_per_s=self.before,
            before_gpu_count=self.before_gpus,
            after_per_s=self.after,
            after_gpu_count=self.after_gpus,
            claimed=self.claimed,
        )


class SavingClaim(Strict):
    """So much of the bill is saved."""

    kind: Literal["saving"]
    before: Positive
    """Bill before."""
    before_units: Positive
    """What was served for it."""
    after: Positive
    """Bill afterwards."""
    after_units: Positive
    """What was served for that."""
    claimed: ClaimedFraction
    """Share saved."""

    def check(self) -> Checked:
        """At equal work."""
        return claims.saving(
            before_usd=self.before,
            before_units=self.before_units,
            after_usd=self.after,
            after_units=self.after_units,
            claimed_fraction=self.claimed,
        )


class PrecisionClaim(Strict):
    """Smaller weights decode so many times as fast."""

    kind: Literal["precision"]
    model: ModelName
    """Which model."""
    gpu: GpuName
    """On which GPU."""
    tp: Count = 1
    """GPUs per replica."""
    before_precision: Precision
    """Weights before."""
    after_precision: Precision
    """Weights afterwards."""
    context: Tokens
    """Mean context of a sequence."""
    sequences: Annotated[Count | None, Field()] = None
    """Sequences in both; left out, as many as each holds."""
    claimed: ClaimedFactor
    """Factor."""

    def check(self) -> Checked:
        """From the step time of both, per GPU.

        Raises:
            BadInput: one of them does not run at all, or does not hold what is asked.
        """
        before = self._replica("before_precision", self.before_precision)
        after = self._replica("after_precision", self.after_precision)
        self._refuse_too_much(before, after)
        return claims.decode_speed_up(
            before,
            after,
            context_tokens=self.context,
            sequence_count=self.sequences,
            claimed=self.claimed,
        )

    def _refuse_too_much(self, *replicas: ReplicaPhysics) -> None:
        from tokenfleet import catalog

        longest = catalog.model(self.model).max_context_tokens
        if longest is not None and self.context > longest:
            what = f"{self.context:,} tokens, and {self.model} reads {longest:,} at most"
            raise BadInput.at("--context", what, f"give {longest} or fewer")
        held = {each.deployment.precision: claims.most_sequences(each, self.context) for each in replicas}
        least = min(held.values())
        if (self.sequences or 1) > least:
            told = " and ".join(f"{precision} holds {count}" for precision, count in held.items())
            what = f"of {self.context:,} tokens {told}"
            mend = f"give {least} or fewer" if least else "give a shorter --context, or more --tp"
            raise BadInput.at("--sequences" if least else "--context", what, mend)

    def _replica(self, where: str, precision: Precision) -> ReplicaPhysics:
        from tokenfleet import catalog, performance
        from tokenfleet.app.compose import why_not

        model, gpu = catalog.model(self.model), catalog.gpu(self.gpu)
        deployment = Deployment(
            model=model.name,
            gpu=gpu.name,
            layout=Layout(tensor_parallel=self.tp),
            precision=precision,
            kv_precision="bf16",
            engine=catalog.engine("vllm", gpu=gpu),
        )
        reasons = why_not(model, gpu, deployment)
        if reasons:
            raise BadInput.at(f"--{where.replace('_', '-')}", reasons[0].text, "give another precision or more --tp")
        return performance.replica_physics(model, gpu, deployment)


class DisaggregationClaim(Strict):
    """Prefill and decode apart carry so many times the load of one fleet, on as many GPUs."""

    kind: Literal["disaggregation"]
    scenario: Path
    """Whose demand, model, gpu and promise."""
    gpu: GpuName | None = None
    """One of the scenario's gpus; may be left out where it names one."""
    gpus: Count | None = None
    """GPUs of each way; a node of them when left out."""
    link: LinkName | None = None
    """What KV crosses between the two pools; left out, what the scenario says under ``disaggregated``."""
    claimed: ClaimedFactor
    """Factor."""

    def check_on(self, teller: Teller) -> Checked:
        """By replay of both ways, every split of the GPUs tried.

        Raises:
            BadInput: the scenario cannot be planned, names several gpus, or no link; too few GPUs for two pools.
        """
        from tokenfleet.app.claim_replay import at_equal_gpus

        compared = at_equal_gpus(self.scenario, self.gpu, self.gpus, self.link, teller)
        return claims.disaggregation(compared, self.claimed)


Claim = (
    ContractClaim | TokenPriceClaim | BreakEvenClaim | SpeedUpClaim | SavingClaim | PrecisionClaim | DisaggregationClaim
)
KINDS: Final[dict[str, type[Claim]]] = {
    "contract": ContractClaim,
    "token-price": TokenPriceClaim,
    "break-even": BreakEvenClaim,
    "speed-up": SpeedUpClaim,
    "saving": SavingClaim,
    "precision": PrecisionClaim,
    "disaggregation": DisaggregationClaim,
}
"""Every kind of claim."""
