"""The hands of the autoscaler: what :mod:`tokenfleet.control.scaling` decides happens to replicas, after a cold start.

The fleet of a replay holds as many replicas as there may ever be; those not asked for are absent. A replica asked for
holds its gpus from the moment a machine is to be had, and takes requests a cold start later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokenfleet.control import ScalingPolicy, ScalingState, ScalingStep, decide, signals_of
from tokenfleet.domain.trace import Bools
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
        start_count: Those of its own that are ready at second 0, the first ones.
        cold_start_s: From having a machine to the first request.
        tick_s: Time between two ticks of the world.
        stock_outs_s: Start and end of spans in which no machine is to be had.
        own: Numbers of the replicas that come and go; all of them when left out. The others stay.
        sees_all: Signals are of all replicas, and the policy counts all of them; else both are about its own alone.
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
        own: range | None = None,
        sees_all: bool = True,
    ) -> None:
        self.policy, self.cold_start_s, self.tick_s = policy, cold_start_s, tick_s
        self.stock_outs_s = stock_outs_s
        self.own, self.sees_all = range(replica_count) if own is None else own, sees_all
        self.absent = tuple(self.own[start_count:])
        staying_count = replica_count - len(self.own) if sees_all else 0
        self.state = ScalingState(target_count=staying_count + start_count)
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
        seen = view if self.sees_all else of_replicas(view, self.own)
        signals = signals_of(seen, seen.state == ReplicaState.READY, len(self._orders))
        step, self.state = decide(signals, self.policy, self.state)
        self.steps.append(step)
        late, self._orders = self._orders[: step.give_up_count], self._orders[step.give_up_count :]
        happenings = _called_off(late, "did not become ready in time", view.time_s)
        self._order(view, step)
        happenings += self._let_go(view, step)
        return [*happenings, *self._due(view.time_s + self.tick_s)]

    def _order(self, view: FleetView, step: ScalingStep) -> None:
        gone = self._of_own((view.state == ReplicaState.ABSENT) | (view.state == ReplicaState.FAILED))
        gone[[each.replica for each in self._orders]] = False
        start_s = obtained_s(view.time_s, self.stock_outs_s)
        for replica in np.flatnonzero(gone)[: step.start_count].tolist():
            self._orders.append(_Order(replica, start_s, start_s + self.cold_start_s, step.reason))

    def _let_go(self, view: FleetView, step: ScalingStep) -> list[Happening]:
        """Those on their way first, the youngest of them; then the ready ones with the fewest requests."""
        kept_count = max(len(self._orders) - step.stop_count, 0)
        youngest, self._orders = self._orders[kept_count:], self._orders[:kept_count]
        happenings = _called_off(youngest, step.reason, view.time_s)
        ready = np.flatnonzero(self._of_own(view.state == ReplicaState.READY))[::-1]
        # Stable from behind: of equals the one with the highest number goes.
        emptiest = ready[np.argsort((view.running + view.waiting)[ready], kind="stable")]
        stopped = tuple(sorted(emptiest[: step.stop_count - len(youngest)].tolist()))
        if stopped:
            happenings.append(Happening(time_s=view.time_s, kind="stop", replicas=stopped, reason=step.reason))
        return happenings

    def _of_own(self, replicas: Bools) -> Bools:
        """Those of these replicas that are its own."""
        mine = np.zeros(len(replicas), dtype=np.bool_)
        mine[self.own] = True
        return replicas & mine

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


def of_replicas(view: FleetView, chosen: range) -> FleetView:
    """What a view shows of some replicas; arrivals and first tokens stay those of all."""
    waits = view.oldest_wait_s
    return replace(
        view,
        state=view.state[chosen],
        running=view.running[chosen],
        waiting=view.waiting[chosen],
        kv_used_fraction=view.kv_used_fraction[chosen],
        free_kv_tokens=view.free_kv_tokens[chosen],
        active_tokens=None if view.active_tokens is None else view.active_tokens[chosen],
        oldest_wait_s=None if waits is None else {level: each[chosen] for level, each in waits.items()},
    )


def _happening(kind: HappeningKind, time_s: float, replica: int, reason: str) -> Happening:
    return Happening(time_s=time_s, kind=kind, replicas=(replica,), reason=reason)


def _called_off(orders: Sequence[_Order], reason: str, time_s: float) -> list[Happening]:
    """Orders that have a machine give it back; the others never had one."""
    return [_happening("stop", time_s, each.replica, reason) for each in orders if each.started]
