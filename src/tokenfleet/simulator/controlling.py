"""Who watches a fleet while it is replayed: an autoscaler, a degradation ladder, or both."""

from collections.abc import Sequence

from tokenfleet.control import Ladder, LadderState, LadderStep, climb, door_of, signals_of
from tokenfleet.domain.world import FleetView, Happening, ReplicaState
from tokenfleet.simulator.autoscaling import Autoscaler


class Controller:
    """Asked at each tick of a :class:`tokenfleet.domain.world.World`; one for each replay, for it remembers.

    Args:
        scaler: Decides how many replicas run; ``None``: they are what they are.
        ladder: Climbed as pressure asks; ``None``: nothing is given up.
    """

    def __init__(self, scaler: Autoscaler | None, ladder: Ladder | None) -> None:
        self.scaler, self.ladder = scaler, ladder
        self.ladder_steps: list[LadderStep] = []
        self._ladder_state = LadderState()

    def __call__(self, view: FleetView) -> Sequence[Happening]:
        """Watch, close the door to what is given up, and let the autoscaler decide."""
        happenings: list[Happening] = []
        if self.ladder is not None:
            seen = signals_of(view, view.state == ReplicaState.READY, 0)
            self._ladder_state, step = climb(seen, self.ladder, self._ladder_state)
            if step is not None:
                self.ladder_steps.append(step)
                reason = f"{'enter' if step.entered else 'leave'} {step.kind}: {step.reason}"
                door = door_of(self.ladder, self._ladder_state)
                happenings.append(Happening(time_s=view.time_s, kind="door", replicas=(), door=door, reason=reason))
        return happenings if self.scaler is None else [*happenings, *self.scaler(view)]
