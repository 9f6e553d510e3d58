"""What the controller of a gate may know of a pool behind it, tick by tick."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.world import FleetView, Happening, ReplicaState, World
from tokenfleet.simulator.building import PS_PER_S, to_ps

NOBODY = np.zeros(0, dtype=np.int32)


@dataclass(slots=True)
class Watched:
    """Remembers what the controller of a pool is shown, and has it decide as ever."""

    world: World
    fleet: Fleet
    views: dict[int, FleetView] = field(default_factory=dict)
    """By the time of the tick in picoseconds."""

    def __call__(self, view: FleetView) -> Sequence[Happening]:
        """Remember, and pass it on."""
        self.views[to_ps(view.time_s)] = view
        return [] if self.world.controller is None else self.world.controller(view)

    def in_view(self, tick_s: float) -> World:
        """The world of the pool, seen at every tick."""
        return replace(self.world, controller=self, tick_s=tick_s)

    def at(self, time_ps: int) -> FleetView:
        """The pool at a tick. One that has nothing to do any more is empty, its replicas as they were."""
        known = self.views.get(time_ps)
        if known is not None:
            return known
        last = next(reversed(self.views.values()), None)
        state = self._at_first() if last is None else last.state
        nothing = np.zeros(len(state), dtype=np.int32)
        return FleetView(
            time_s=time_ps / PS_PER_S,
            state=state,
            running=nothing,
            waiting=nothing,
            kv_used_fraction=np.zeros(len(state)),
            free_kv_tokens=self._kv_tokens(),
            arrived_count=0,
            refused_count=0,
            ttft_p90_s=None,
            first_tokens=NOBODY,
            first_token_s=np.zeros(0),
        )

    def _kv_tokens(self) -> npt.NDArray[np.int32]:
        """What the KV memory of each replica holds that is shown."""
        shown = [group for group in self.fleet.groups if not group.is_smaller_model]
        tokens = [group.replica.kv_pool_tokens for group in shown]
        return np.repeat(tokens, [group.replica_count for group in shown]).astype(np.int32)

    def _at_first(self) -> npt.NDArray[np.int8]:
        state = np.full(len(self._kv_tokens()), int(ReplicaState.READY), dtype=np.int8)
        state[list(self.world.absent)] = int(ReplicaState.ABSENT)
        return state
