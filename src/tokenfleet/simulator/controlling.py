"""Who watches a fleet while it is replayed: an autoscaler, a degradation ladder, or both."""

from collections.abc import Sequence

from tokenfleet.control import Ladder, LadderState, LadderStep, climb, signals_of
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
        """Watch, note what is given up, and let the autoscaler decide."""
        if self.ladder is not None:
            seen = signals_of(view, view.state == ReplicaState.READY, 0)
            self._ladder_state, step = climb(seen, self.ladder, self._ladder_state)
            if step is not None:
                self.ladder_steps.append(step)
        return () if self.scaler is None else self.scaler(view)
