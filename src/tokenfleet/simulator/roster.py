"""What the replicas of a fleet are, and what becomes of them while a replay pauses."""

import math

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import Decision, Spell
from tokenfleet.domain.trace import Floats
from tokenfleet.domain.world import BECOMES, Happening, ReplicaState
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import PS_PER_S
from tokenfleet.simulator.entry import advance
from tokenfleet.simulator.equipping import renew_replica
from tokenfleet.simulator.placing import Buffer, Places, ring_size
from tokenfleet.simulator.surroundings import Surroundings, count_ready, write_door

HOLDING = (int(ReplicaState.READY), int(ReplicaState.DRAINING), int(ReplicaState.STOPPING))
"""States in which a replica may hold requests."""


class Roster:
    """The replicas by number, over all groups in order."""

    def __init__(self, memory: Buffer, places: Places, around: Surroundings, fleet: Fleet) -> None:
        self.memory, self.places, self.around, self.fleet = memory, places, around, fleet
        self.group_of = [index for index, group in enumerate(fleet.groups) for _ in range(group.replica_count)]
        self.numbers = range(len(self.group_of))
        self.states = memory[around.states.start : around.states.stop]
        self.events = memory[places.events.start : places.events.stop]
        self.in_flight = memory[places.in_flight.start : places.in_flight.stop]
        self.rows = memory[places.replicas.start : places.replicas.stop].reshape(-1, at.REPLICA_WORDS)
        self.pools = memory[places.pools.start : places.pools.stop].reshape(-1, at.POOL_WORDS)
        self.factors = [1.0 for _ in self.numbers]
        self.since_ps = np.zeros(len(self.group_of), dtype=np.int64)
        self.spells: list[tuple[int, int, int, int]] = []
        """What each replica was, from when to when: number, state, start and end in picoseconds; but the last."""
        self.decisions: list[Decision] = []

    def happen(self, happening: Happening, time_ps: int) -> None:
        """Let something become of replicas, now, while the replay pauses."""
        if happening.door is not None:
            write_door(self.memory, self.around, happening.door, time_ps)
            self._look_at_lane(time_ps)
            self._decide(happening, (), time_ps)
            return
        if happening.kind == "wait":
            self._decide(happening, happening.replicas, time_ps)
            return
        self.settle()
        change = self._slow if happening.kind == "slow" else self._become
        changed = tuple(number for number in happening.replicas if change(number, happening, time_ps))
        if changed:
            self._decide(happening, changed, time_ps)
        self.settle()
        count_ready(self.memory, self.places, self.states)
        self._look_at_lane(time_ps)

    def _decide(self, happening: Happening, replicas: tuple[int, ...], time_ps: int) -> None:
        """Write it into the log."""
        time_s = time_ps / PS_PER_S
        self.decisions.append(Decision(time_s=time_s, kind=happening.kind, replicas=replicas, reason=happening.reason))

    def lane_waits(self) -> bool:
        """Whether batch requests wait at the gateway for a pool, and none of them is about to be sent."""
        waiting, coming = self.pools[:, at.LANE_FIRST], self.pools[:, at.ON_ITS_WAY]
        return bool(np.any((waiting != at.NONE) & (coming == at.NONE)))

    def is_starting(self) -> bool:
        """Whether any replica is on its way."""
        return bool((self.states == int(ReplicaState.STARTING)).any())

    def dissolve_lane(self, time_ps: int) -> int:
        """Have those that wait in the lanes turned away, for nobody will serve them; the time of the next event."""
        self.memory[at.ORDER_KIND] = at.DISSOLVE
        return advance(self.memory, time_ps)

    def _look_at_lane(self, time_ps: int) -> None:
        if self.lane_waits():
            self.memory[at.ORDER_KIND] = at.RELEASE
            advance(self.memory, time_ps)

    def settle(self) -> None:
        """Note which of the stopping replicas are empty: they are gone since they were."""
        for number in np.flatnonzero((self.states == int(ReplicaState.STOPPING)) & (self.in_flight == 0)).tolist():
            emptied_ps = int(self.rows[number, at.EMPTIED])
            self._set_state(number, ReplicaState.ABSENT, max(emptied_ps, int(self.since_ps[number])))

    def states_now(self) -> npt.NDArray[np.int8]:
        """What each replica is; one that stops is gone once it is empty."""
        gone = (self.states == int(ReplicaState.STOPPING)) & (self.in_flight == 0)
        return np.where(gone, int(ReplicaState.ABSENT), self.states).astype(np.int8)

    def state_s(self, end_ps: int) -> Floats:
        """Seconds that each replica spent in each state up to the end, shape (replica, state)."""
        self.settle()
        spent_ps = np.zeros((len(self.states), len(ReplicaState)), dtype=np.int64)
        last = [(number, int(self.states[number]), int(self.since_ps[number]), end_ps) for number in self.numbers]
        for number, state, since_ps, until_ps in self.spells + last:
            spent_ps[number, state] += max(min(until_ps, end_ps) - since_ps, 0)
        return spent_ps / PS_PER_S

    def spells_s(self) -> tuple[Spell, ...]:
        """What each replica was, from when to when."""
        self.settle()
        ended = [
            Spell(replica=number, state=state, start_s=since_ps / PS_PER_S, end_s=until_ps / PS_PER_S)
            for number, state, since_ps, until_ps in self.spells
            if until_ps > since_ps
        ]
        last = [
            Spell(
                replica=number,
                state=int(self.states[number]),
                start_s=int(self.since_ps[number]) / PS_PER_S,
                end_s=math.inf,
            )
            for number in self.numbers
        ]
        return (*ended, *last)

    def _set_state(self, number: int, state: ReplicaState, time_ps: int) -> None:
        self.spells.append((number, int(self.states[number]), int(self.since_ps[number]), time_ps))
        self.since_ps[number] = time_ps
        self.states[number] = int(state)

    def _become(self, number: int, happening: Happening, time_ps: int) -> bool:
        before = ReplicaState(self.states[number])
        state = BECOMES[happening.kind].get(before)
        if state is None:
            return False
        if happening.kind == "fail" and before in HOLDING:
            self._order(number, at.FAIL, time_ps)
        if before not in HOLDING or state == ReplicaState.FAILED:
            self._renew(number, time_ps)
        self._set_state(number, state, time_ps)
        return True

    def _slow(self, number: int, happening: Happening, time_ps: int) -> bool:
        factor = happening.step_time_factor
        if self.states[number] not in HOLDING or self.factors[number] == factor:
            return False
        self.factors[number] = factor
        index = self.group_of[number]
        if factor == 1.0:
            self.memory[at.ORDER_GROUP] = self.places.groups.start + index * at.GROUP_WORDS
        else:
            self.memory[at.ORDER_GROUP] = self.around.slowed[index, factor][0].start
        self._order(number, at.SLOW, time_ps)
        return True

    def _order(self, number: int, kind: int, time_ps: int) -> None:
        """Have the kernel change a replica; it has passed all events up to now."""
        self.memory[at.ORDER_REPLICA] = number
        self.memory[at.ORDER_KIND] = kind
        advance(self.memory, time_ps)

    def _renew(self, number: int, time_ps: int) -> None:
        """A fresh replica, at its usual speed."""
        if self.events[number] < at.NEVER_PS:
            # It is empty, and would pass a boundary for somebody who has given up.
            self._order(number, at.FAIL, time_ps)
        self.factors[number] = 1.0
        index = self.group_of[number]
        group = self.fleet.groups[index]
        renew_replica(self.memory, self.places, self.around.rows, number, index, group, ring_size(self.around.rows))
