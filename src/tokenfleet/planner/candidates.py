"""Who is searched among, and who is out for good."""

from dataclasses import fields
from functools import cached_property
from operator import attrgetter

from tokenfleet.domain.gpu import GpuPriceRange
from tokenfleet.domain.plan import Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, EngineSettings, ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.floors import decode_profile, prefill_profile
from tokenfleet.planner.verdict import Verdict

Family = tuple[object, object]
_STEP_SIZES = {"max_batched_tokens", "max_sequence_count"}
_of_deployment = attrgetter(*(each.name for each in fields(Deployment) if each.name != "engine"))
_of_engine = attrgetter(*(each.name for each in fields(EngineSettings) if each.name not in _STEP_SIZES))


@dataclass(frozen=True, slots=True)
class Profiles:
    """A replica's times, to hold it against others."""

    prefill_s: tuple[float, ...]
    """See :func:`tokenfleet.planner.floors.prefill_profile`."""
    decode_s: tuple[float, ...]
    """See :func:`tokenfleet.planner.floors.decode_profile`."""


def profiles_of(replica: ReplicaPhysics) -> Profiles:
    """Worked out by formula."""
    return Profiles(prefill_profile(replica), decode_profile(replica))


@dataclass(frozen=True)
class Candidate:
    """A replica that passed its floors, with its price and the count the formula suggests."""

    replica: ReplicaPhysics
    price: GpuPriceRange
    estimate: int
    known: Profiles | None = None
    """Its times, where they were worked out before."""
    doubtful: bool = False
    """By the formula no count of it keeps the promise."""

    @cached_property
    def name(self) -> str:
        """Orders equals the same way every time."""
        return words.settled(self.replica.deployment)

    @cached_property
    def family(self) -> Family:
        """See :func:`family`."""
        return family(self.replica)

    @cached_property
    def profiles(self) -> Profiles:
        """Its times."""
        return self.known or profiles_of(self.replica)

    @property
    def prefill_s(self) -> tuple[float, ...]:
        """Of lone prompts, the longest first."""
        return self.profiles.prefill_s

    @property
    def decode_s(self) -> tuple[float, ...]:
        """Of a few batches that decode."""
        return self.profiles.decode_s

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens that the KV blocks of a replica hold."""
        return self.replica.kv_pool_tokens

    @property
    def usd_per_replica_hour(self) -> float:
        """Price of one replica for one hour."""
        return self.replica.deployment.layout.gpu_count * self.price.price.price_usd_per_gpu_hour


@dataclass(frozen=True, slots=True)
class Failure:
    """A replica that does not keep the promise though there are more than enough of it."""

    replica: ReplicaPhysics
    count: int
    verdict: Verdict
    reasons: tuple[Reason, ...]
    untried: bool = False
    """More of it might do, but there is no memory to replay them, or no room in the zones."""
    zones_full: bool = False
    """It is the zones that have no room for more."""
    inferred: bool = False
    """Not replayed itself: the verdict is that of a replica at least as good."""


def family(replica: ReplicaPhysics) -> Family:
    """Equal for deployments that differ in nothing but the size of their steps."""
    deployment = replica.deployment
    return _of_deployment(deployment), _of_engine(deployment.engine)
