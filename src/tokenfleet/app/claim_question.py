"""What a claim says, by kind, and its check."""

from typing import Annotated, Final, Literal

from pydantic import Field

from tokenfleet.app.scenario_words import Count, Duration, Fraction, GpuName, ModelName, Positive, Rate, Strict, Tokens
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout, Precision, ReplicaPhysics
from tokenfleet.planner import claims
from tokenfleet.planner.claims import Checked


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
    output: Positive | None = None
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
    claimed: Positive
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
    claimed: Fraction
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
    claimed: Positive
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
    claimed: Fraction
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
    claimed: Positive
    """Factor."""

    def check(self) -> Checked:
        """From the step time of both, per GPU.

        Raises:
            BadInput: one of them does not run at all.
        """
        return claims.decode_speed_up(
            self._replica("before_precision", self.before_precision),
            self._replica("after_precision", self.after_precision),
            context_tokens=self.context,
            sequence_count=self.sequences,
            claimed=self.claimed,
        )

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


Claim = ContractClaim | TokenPriceClaim | BreakEvenClaim | SpeedUpClaim | SavingClaim | PrecisionClaim
KINDS: Final[dict[str, type[Claim]]] = {
    "contract": ContractClaim,
    "token-price": TokenPriceClaim,
    "break-even": BreakEvenClaim,
    "speed-up": SpeedUpClaim,
    "saving": SavingClaim,
    "precision": PrecisionClaim,
}
"""Every kind of claim."""
