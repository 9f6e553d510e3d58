"""What is around a fleet in a simulation: the scenario's autoscaling and its ladder, made anew for each replay."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet.app.scaling_question import (
    batch_of,
    cold_start_of,
    ladder_of,
    policy_of,
    setting_of,
    without_effect,
)
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.control import Ladder, ScalingPolicy
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, World
from tokenfleet.planner.scaling import ScalingSetting, scaler_of
from tokenfleet.simulator.controlling import Controller

_TICK_S: Final = 15.0
ABSENT_COUNT: Final = "Means over replicas count those that are not there as empty."


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """A fleet and who watches it."""

    fleet: Fleet
    """With as many replicas as there may ever be."""
    setting: ScalingSetting | None = None
    policy: ScalingPolicy | None = None
    ladder: Ladder | None = None
    batch: npt.NDArray[np.bool_] | None = None
    """Which requests are batch."""
    notes: tuple[str, ...] = ()
    """What was taken for granted."""

    @property
    def is_quiet(self) -> bool:
        """Whether nobody watches and nothing happens."""
        return self.policy is None and self.ladder is None

    def controller(self) -> Controller:
        """Somebody new to watch: every replay needs its own."""
        scaler = None
        if self.setting is not None and self.policy is not None:
            scaler = scaler_of(self.setting, self.policy)
        return Controller(scaler, self.ladder)

    def world(self, controller: Controller | None = None, *, first_count: int | None = None) -> World | None:
        """The world of one replay, watched by ``controller`` or by somebody new; ``None`` where all is quiet.

        Args:
            controller: Who watches.
            first_count: Of a replay of so many first requests; ``None``: of all.
        """
        if self.is_quiet:
            return None
        batch = None if self.batch is None else self.batch[:first_count]
        watching = controller or self.controller()
        admission = Admission(queue_limit_count=None if self.ladder is None else self.ladder.queue_limit_count)
        if self.setting is None or watching.scaler is None:
            return World(admission=admission, batch=batch, controller=watching, tick_s=_TICK_S)
        return World(
            happenings=self.setting.happenings,
            absent=watching.scaler.absent,
            admission=admission,
            batch=batch,
            controller=watching,
            tick_s=self.setting.tick_s,
        )


def around_of(asked: Scenario, fleet: Fleet, trace: Trace) -> Around:
    """What the scenario puts around a fleet.

    Raises:
        BadInput: a policy or a ladder that cannot work, or a fleet that one policy cannot scale.
    """
    ladder = None if asked.ladder is None else ladder_of(asked.ladder)
    batch = None if asked.ladder is None else batch_of(asked.ladder, trace)
    notes = () if ladder is None else without_effect(ladder, trace, batch)
    spec = asked.autoscaling
    if spec is None:
        return Around(fleet=fleet, ladder=ladder, batch=batch, notes=notes)
    setting = setting_of(asked, spec, fleet, trace)
    return Around(
        fleet=setting.fleet,
        setting=setting,
        policy=policy_of(spec, setting, trace),
        ladder=ladder,
        batch=batch,
        notes=(cold_start_of(asked, spec, fleet)[1], ABSENT_COUNT, *notes),
    )
