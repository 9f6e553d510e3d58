"""What a router and a controller are shown: gauges as a scrape sees them, and what has reached clients by then."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Floats, Trace
from tokenfleet.domain.world import FleetView, Happening, World
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import PS_PER_S, to_ps
from tokenfleet.simulator.placing import Buffer, Places, priority_levels
from tokenfleet.simulator.pools import pool_sizes
from tokenfleet.simulator.surroundings import Surroundings
from tokenfleet.simulator.waits import Queues


class Scraper:
    """Shows the gauges to a router that looks at them, now and then."""

    def __init__(self, memory: Buffer, places: Places, fleet: Fleet) -> None:
        self.interval_ps = to_ps(fleet.scrape_s)
        self.gauges = memory[places.samples.start : places.samples.stop].reshape(-1, at.SAMPLE_WORDS)
        self.scrapes = memory[places.scrapes.start : places.scrapes.stop].reshape(-1, at.SCRAPE_WORDS)
        self.in_flight = memory[places.in_flight.start : places.in_flight.stop]
        self.blocks = blocks_of(fleet)

    def scrape(self) -> None:
        """The router sees the gauges of this pause until the next scrape."""
        used = self.blocks - self.gauges[:, at.SAMPLE_FREE_BLOCKS]
        self.scrapes[:, at.SCRAPED_WAITING] = self.gauges[:, at.SAMPLE_WAITING]
        self.scrapes[:, at.SCRAPED_KV_PPM] = used * 1_000_000 // self.blocks
        self.scrapes[:, at.SCRAPED_IN_FLIGHT] = self.in_flight


def blocks_of(fleet: Fleet) -> npt.NDArray[np.int64]:
    """KV blocks of each replica."""
    return np.concatenate([np.full(group.replica_count, group.replica.kv_block_count) for group in fleet.groups])


def free_tokens(fleet: Fleet, free_blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Tokens that the free blocks of the first replicas hold where windows cost nothing."""
    each = [
        (group.replica.kv_block_tokens, group.replica.kv_growth_block_count or group.replica.kv_window_block_count)
        for group in fleet.groups
        for _ in range(group.replica_count)
    ]
    tokens, blocks = np.array(each[: len(free_blocks)], dtype=np.int64).T
    return np.asarray(free_blocks // blocks * tokens, dtype=np.int32)


class Desk:
    """Where a controller sits: it is handed a view at each tick, and hands back what is to happen."""

    def __init__(
        self, memory: Buffer, places: Places, around: Surroundings, trace: Trace, fleet: Fleet, world: World
    ) -> None:
        self.memory, self.around, self.world = memory, around, world
        self.controller = world.controller
        self.tick_ps = to_ps(world.tick_s)
        self.count = pool_sizes(fleet)[0]
        """Replicas that are shown: those of the model that is asked for."""
        self.pool = places.pools.start
        gauges = memory[places.samples.start : places.samples.stop].reshape(-1, at.SAMPLE_WORDS)
        self.gauges = gauges[: self.count]
        self.requests = memory[places.requests.start : places.requests.stop].reshape(-1, at.REQUEST_WORDS)
        self.visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
        self.requests_start = places.requests.start
        self.blocks = blocks_of(fleet)[: self.count]
        self.fleet = fleet
        self.priorities: list[int] = priority_levels(trace).tolist()
        self.queues = Queues(memory, places)
        self.coming = np.zeros(0, dtype=np.int64)
        """Requests whose first token is fixed and was not there yet at the last tick."""
        self.told = (0, 0)

    def ask(self, time_ps: int) -> tuple[Happening, ...]:
        """Show the controller what it may know, and check what it answers."""
        if self.controller is None:
            return ()
        answer = tuple(self.controller(self.view(time_ps)))
        for happening in answer:
            _check_answer(happening, time_ps, len(self.blocks))
        return answer

    def view(self, time_ps: int) -> FleetView:
        """What the last scrape saw."""
        counts = int(self.memory[self.pool + at.ENTERED_COUNT]), int(self.memory[self.pool + at.REFUSED_COUNT])
        arrived, refused = counts[0] - self.told[0], counts[1] - self.told[1]
        self.told = counts
        fixed = self.new_firsts(time_ps)
        left_ps = self.requests[fixed, at.FIRST_TOKEN]
        ttft_s = (left_ps - self.visits[fixed, at.FIRST_ARRIVAL]) / PS_PER_S
        inside = self.world.looks_inside
        return FleetView(
            time_s=time_ps / PS_PER_S,
            state=self.memory[self.around.states.start : self.around.states.start + self.count].astype(np.int8),
            running=self.gauges[:, at.SAMPLE_RUNNING].astype(np.int32),
            waiting=self.gauges[:, at.SAMPLE_WAITING].astype(np.int32),
            kv_used_fraction=1.0 - self.gauges[:, at.SAMPLE_FREE_BLOCKS] / self.blocks,
            free_kv_tokens=free_tokens(self.fleet, self.gauges[:, at.SAMPLE_FREE_BLOCKS]),
            arrived_count=arrived,
            refused_count=refused,
            ttft_p90_s=float(np.quantile(ttft_s, 0.9, method="inverted_cdf")) if len(ttft_s) else None,
            first_tokens=self.visits[fixed, at.ROW].astype(np.int32),
            first_token_s=left_ps / PS_PER_S,
            active_tokens=self.gauges[:, at.SAMPLE_ACTIVE_TOKENS].astype(np.int32) if inside else None,
            oldest_wait_s=self.oldest_wait_s(time_ps) if inside else None,
        )

    def oldest_wait_s(self, time_ps: int) -> dict[int, Floats]:
        """How long who has waited for longest has waited, by priority and replica.

        A priority of whom nobody waits is left out: nobody may know that it will occur.
        """
        wait_ps = self.queues.oldest_wait_ps(self.count, len(self.priorities), time_ps)
        return {
            priority: wait_ps[:, level] / PS_PER_S
            for level, priority in enumerate(self.priorities)
            if wait_ps[:, level].any()
        }

    def read_firsts(self) -> None:
        """Take over the first tokens that the kernel has noted, and let it go on."""
        start = self.around.firsts.start
        noted = self.memory[start : start + self.memory[at.FIRSTS_COUNT]]
        self.coming = np.concatenate([self.coming, (noted - self.requests_start) // at.REQUEST_WORDS])
        self.memory[at.FIRSTS_COUNT] = 0
        if self.memory[at.FAULT] == at.FIRSTS_FULL:
            self.memory[at.FAULT] = 0

    def new_firsts(self, time_ps: int) -> npt.NDArray[np.int64]:
        """Rows whose first token left since the last tick, in the order of the trace; a lost one never left."""
        self.read_firsts()
        fixed = np.unique(self.coming)
        first_ps = self.requests[fixed, at.FIRST_TOKEN]
        self.coming = fixed[first_ps > time_ps]
        shown = (self.requests[fixed, at.PLACE] & at.HALF) < self.count
        left = fixed[shown & (first_ps >= 0) & (first_ps <= time_ps)]
        in_order: npt.NDArray[np.int64] = left[np.argsort(self.visits[left, at.ROW], kind="stable")]
        return in_order


def _check_answer(happening: Happening, time_ps: int, replica_count: int) -> None:
    """A controller decides on replicas there are, from now on."""
    where = "world.controller"
    if to_ps(happening.time_s) < time_ps:
        what = f"{happening.kind} at {happening.time_s} s, asked at {time_ps / PS_PER_S} s"
        raise BadInput.at(where, what, "answer for the tick or later")
    if not all(0 <= number < replica_count for number in happening.replicas):
        raise BadInput.at(where, f"replicas {happening.replicas}", f"numbers from 0 to {replica_count - 1}")
    if (happening.kind == "door") != (happening.door is not None):
        raise BadInput.at(where, f"{happening.kind} with door {happening.door}", "kind door, and only it, has one")
    if happening.kind == "slow":
        raise BadInput.at(where, "a controller that slows replicas", "put it into world.happenings")
