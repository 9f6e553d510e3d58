"""The hands of the autoscaler: what :mod:`tokenfleet.control.scaling` decides happens to replicas, after a cold start.

The fleet of a replay holds as many replicas as there may ever be; those not asked for are absent. A replica asked for
holds its gpus from the moment a machine is to be had, and takes requests a cold start later.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenfleet.control import ScalingPolicy, ScalingState, ScalingStep, decide, signals_of
from tokenfleet.domain.world import FleetView, Happening, HappeningKind, ReplicaState
from tokenfleet.simulator.supply import obtained_s


@dataclass(slots=True)
class _Order:
    """A replica on its way."""

    replica: int
    start_s: float
    """When there is a machine."""
    ready_s: float
    reason: str
    started: bool = False


class Autoscaler:
    """A controller for :class:`tokenfleet.domain.world.World`; one for each replay, for it remembers.

    Args:
        policy: Checked.
        replica_count: Replicas of the fleet, at least the most that the policy allows.
        start_count: Those that are ready at second 0: numbers 0 .. start_count - 1.
        cold_start_s: From having a machine to the first request.
        tick_s: Time between two ticks of the world.
        stock_outs_s: Start and end of spans in which no machine is to be had.
    """

    def __init__(
        self,
        policy: ScalingPolicy,
        *,
        replica_count: int,
        start_count: int,
        cold_start_s: float,
        tick_s: float,
        stock_outs_s: Sequence[tuple[float, float]] = (),
    ) -> None:
        self.policy, self.cold_start_s, self.tick_s = policy, cold_start_s, tick_s
        self.stock_outs_s = stock_outs_s
        self.absent = tuple(range(start_count, replica_count))
        self.state = ScalingState(target_count=start_count)
        self.steps: list[ScalingStep] = []
        """What was decided at each tick."""
        self._orders: list[_Order] = []

    def __call__(self, view: FleetView) -> Sequence[Happening]:
        """Decide, and say what is to happen until the next tick.

        A start or a ready replica is announced once it falls before the next tick; until then it can be called off.
        """
        # A replica that failed while it loaded does not come.
        self._orders = [
            each for each in self._orders if not (each.started and view.state[each.replica] != ReplicaState.STARTING)
        ]
        ready = view.state == ReplicaState.READY
        step, self.state = decide(signals_of(view, ready, len(self._orders)), self.policy, self.state)
        self.steps.append(step)
        late, self._orders = self._orders[: step.give_up_count], self._orders[step.give_up_count :]
        happenings = _called_off(late, "did not become ready in time", view.time_s)
        self._order(view, step)
        happenings += self._let_go(view, step)
        return [*happenings, *self._due(view.time_s + self.tick_s)]

    def _order(self, view: FleetView, step: ScalingStep) -> None:
        gone = (view.state == ReplicaState.ABSENT) | (view.state == ReplicaState.FAILED)
        gone[[each.replica for each in self._orders]] = False
        start_s = obtained_s(view.time_s, self.stock_outs_s)
        for replica in np.flatnonzero(gone)[: step.start_count].tolist():
            self._orders.append(_Order(replica, start_s, start_s + self.cold_start_s, step.reason))

    def _let_go(self, view: FleetView, step: ScalingStep) -> list[Happening]:
        """Those on their way first, the youngest of them; then the ready ones with the fewest requests."""
        kept_count = max(len(self._orders) - step.stop_count, 0)
        youngest, self._orders = self._orders[kept_count:], self._orders[:kept_count]
        happenings = _called_off(youngest, step.reason, view.time_s)
        load = np.where(view.state == ReplicaState.READY, view.running + view.waiting, np.iinfo(np.int32).max)
        # Stable from behind: of equals the one with the highest number goes.
        emptiest = len(load) - 1 - np.argsort(load[::-1], kind="stable")
        stopped = tuple(sorted(emptiest[: step.stop_count - len(youngest)].tolist()))
        if stopped:
            happenings.append(Happening(time_s=view.time_s, kind="stop", replicas=stopped, reason=step.reason))
        return happenings

    def _due(self, until_s: float) -> list[Happening]:
        """Starts and ready replicas before the next tick."""
        happenings = []
        for each in self._orders:
            if not each.started and each.start_s < until_s:
                each.started = True
                happenings.append(_happening("start", each.start_s, each.replica, each.reason))
            if each.ready_s < until_s:
                said = f"ready {self.cold_start_s:g} s after its start"
                happenings.append(_happening("ready", each.ready_s, each.replica, said))
        self._orders = [each for each in self._orders if each.ready_s >= until_s]
        return happenings


def _happening(kind: HappeningKind, time_s: float, replica: int, reason: str) -> Happening:
    return Happening(time_s=time_s, kind=kind, replicas=(replica,), reason=reason)


def _called_off(orders: Sequence[_Order], reason: str, time_s: float) -> list[Happening]:
    """Orders that have a machine give it back; the others never had one."""
    return [_happening("stop", time_s, each.replica, reason) for each in orders if each.started]
