"""What may be lost while a fleet keeps its promise: replicas, nodes, zones, and the replicas under a rollout."""

from typing import Literal

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult

LossKind = Literal["replica", "node", "zone", "rollout", "maintenance"]
"""What takes replicas away: three kinds of failure, the change of a version, and a node that is drained first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A place whose power, network and ingress fail together."""

    name: str
    weights: bool = True
    """The model's weights lie there too, so that its replicas start again without another zone."""
    ingress: bool = True
    """Users reach it without another zone."""
    gpu_limit_count: int | None = None
    """GPUs to be had there; ``None``: as many as are wanted."""

    @property
    def stands_alone(self) -> bool:
        """Its replicas serve when every other zone is gone."""
        return self.weights and self.ingress


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundancy:
    """How many of what may be gone at once, each kind on its own."""

    replica_count: int = 0
    node_count: int = 0
    zone_count: int = 0
    zones: tuple[Zone, ...] = ()
    """Where replicas may stand; none named: one place."""
    elsewhere: tuple[str, ...] = ()
    """Names of zones outside of the region that the data must not leave: they hold no replica."""
    data_region: str | None = None
    """That region; ``None``: the data may be anywhere."""
    replicas_per_node_count: int | None = None
    """At most so many on one node; ``None``: as many as its GPUs hold, fewer where a lost node would take too many."""
    ride_through: bool = False
    """The promise holds in the window after each loss too, while the requests that were lost come back."""
    gpu_quota_count: int | None = None
    """GPUs that may be held in all zones together; ``None``: nobody says."""

    def count_of(self, kind: LossKind) -> int:
        """How many of ``kind`` may be gone at once."""
        return {"replica": self.replica_count, "node": self.node_count, "zone": self.zone_count}.get(kind, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How a new version replaces the old one, replica by replica."""

    max_surge_count: int = 1
    """Replicas of the new version beyond the planned number, paid for meanwhile."""
    max_unavailable_count: int = 0
    """Replicas that may be missing from the planned number meanwhile."""
    ready_after_s: float | None = None
    """From the start of a replica until it takes requests; ``None``: unknown."""

    def lasts_s(self, replica_count: int) -> float | None:
        """How long it takes to replace so many replicas; ``None``: unknown."""
        rounds = -(-replica_count // (self.max_surge_count + self.max_unavailable_count))
        return None if self.ready_after_s is None else rounds * self.ready_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    """One machine and the replicas on it."""

    zone: str
    """Empty where no zones are named."""
    replica_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where every replica of a fleet stands."""

    nodes: tuple[PlacedNode, ...]
    """Zone by zone, the fullest first; replicas are numbered in this order."""
    replicas_per_node_count: int
    """Most that one node holds."""

    @property
    def replica_count(self) -> int:
        """Replicas on all nodes."""
        return sum(node.replica_count for node in self.nodes)

    @property
    def free_slot_count(self) -> int:
        """Replicas that the nodes have room for beyond those placed."""
        return len(self.nodes) * self.replicas_per_node_count - self.replica_count

    @property
    def by_zone(self) -> dict[str, int]:
        """Replicas of each zone, in the order of the zones."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.zone] = found.get(node.zone, 0) + node.replica_count
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CoursePoint:
    """A few seconds around a loss."""

    since_s: float
    """After the loss; below 0 before it."""
    ready_replica_count: int
    waiting_count: int
    running_count: int
    slowest_ttft_s: float | None
    """Of the requests that arrive in them, since their first attempt; ``None`` when none does or is answered."""


LASTING_WINDOWS = 3
"""A queue that grows slowly breaks nothing in the first minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How soon after a shock those who arrive are served as promised again, as far as the demand shows it."""

    after_s: float | None
    """Since the shock; 0 when the promise never broke. ``None``: not within the demand replayed after it."""
    demand_left_s: float
    """From the shock to the last arrival replayed."""
    window_s: float
    """Arrivals that are judged together."""

    @property
    def too_soon(self) -> bool:
        """The demand ends before one window of arrivals is full: nobody can say."""
        return self.demand_left_s < self.window_s

    @property
    def lasts(self) -> bool:
        """The promise is seen to hold for three windows from then on."""
        return self.after_s is not None and self.demand_left_s >= self.after_s + LASTING_WINDOWS * self.window_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The loss itself, on the whole fleet at its peak: requests in flight are lost, and their clients come back."""

    time_s: float
    """Of the stretch that was replayed."""
    replicas: tuple[int, ...]
    """Those that are gone."""
    lost_request_count: int
    """Attempts that were lost with their replica."""
    unfinished_count: int
    """Requests that never finished, whatever the reason."""
    longest_wait_s: float | None
    """Slowest first token of a request that was sent again, since its first attempt; ``None`` when none was."""
    kept: bool
    """The promise holds for those who arrive in the window after it, and over all requests, lost ones included."""
    slo_after: tuple[SloResult, ...]
    """Requests that arrive in the window after it."""
    slo_overall: tuple[SloResult, ...]
    recovery: Recovery
    course: tuple[CoursePoint, ...] = ()
    """From before the loss until after it, in order of time."""
    demand_end_s: float = 0.0
    """The last arrival of what was replayed."""
    repeated_count: int = 1
    """Times the demand was replayed one after the other, so that a change of version has an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCase:
    """The promise at the peak, and over all of the traffic, while something is gone and nothing has been started."""

    kind: LossKind
    count: int
    """How many of ``kind`` are gone."""
    required: bool
    """Asked for, and paid for; else only examined."""
    lost: str
    """What is gone, the worst of its kind, in words: ``node 1 of zone a``."""
    lost_replica_count: int
    serving_replica_count: int
    """What is left and can be reached."""
    kept: bool | None
    """``None``: not examined, and ``why`` says why."""
    why: str
    """Empty where the clauses say it."""
    slo_peak: tuple[SloResult, ...]
    slo_overall: tuple[SloResult, ...]
    spare_replica_count: int
    """Replicas that this case alone makes one pay for, on top of the cases before it."""
    spare_usd_per_hour: float
    lasts_s: float | None = None
    """Of a rollout: until every replica is of the new version; ``None``: unknown, or no rollout."""
    moment: Moment | None = None
    """``None`` where the loss itself was not replayed."""
    pool: str | None = None
    """Of a plan of several pools: whose replicas are gone."""


DrillName = Literal["ramp", "burst", "replica", "node", "zone", "rollout", "flood"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One bad day, gone through beforehand."""

    name: DrillName
    what: str
    """What is done to the fleet, in words."""
    passed: bool | None
    """Every clause is kept; ``None``: it could not be done, or not to its end, and ``how`` says why."""
    slo: tuple[SloResult, ...]
    """Clause by clause: the worse of the window that is judged and of all requests."""
    how: str
    """The evidence, in words."""
    pool: str | None = None
    """Of a plan of several pools: the one it was done to."""
