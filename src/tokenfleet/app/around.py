"""What is around a fleet in a simulation: the scenario's autoscaling and its ladder, made anew for each replay."""

from dataclasses import field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import workload
from tokenfleet.app.events import happenings_of
from tokenfleet.app.fleet_rollout import versions_of
from tokenfleet.app.lane_queue import without_batch
from tokenfleet.app.leaving import leaving_of
from tokenfleet.app.scaling_question import (
    batch_of,
    cold_start_of,
    ladder_of,
    policy_of,
    setting_of,
    smaller_groups,
    without_effect,
)
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import nobody_in, taken
from tokenfleet.app.world_question import (
    clients_of,
    door_of,
    gives_up,
    lane_of,
    too_late,
    usual_door,
)
from tokenfleet.control import Ladder, ScalingPolicy
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, BatchLane, Clients, ClosedLoop, Happening, Leaving, World
from tokenfleet.planner.scaling import ScalingSetting, scaler_of
from tokenfleet.simulator.controlling import Controller

_TICK_S: Final = 15.0
LEAVING: Final = "Users who cancelled a call of the log leave here too: with its last token, or when they left it."
SAME_TOKENS: Final = "The smaller model is taken to read and to write as many tokens as the model it stands in for."


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
    happenings: tuple[Happening, ...] = ()
    absent: tuple[int, ...] = ()
    """Replicas of a new version, which come while the traffic runs."""
    clients: Clients = field(default_factory=Clients)
    admission: Admission = field(default_factory=Admission)
    lane: BatchLane | None = None
    """How batch is served; ``None``: like all others."""
    loop: ClosedLoop | None = None
    """Who sends what when which request has ended."""
    leaving: Leaving | None = None
    """Users who leave before their answer is complete."""
    reads_tokens_per_s: float | None = None
    """What a client reads, which no engine waits for."""
    notes: tuple[str, ...] = ()
    """What was taken for granted."""

    @property
    def is_watched(self) -> bool:
        """Whether somebody decides while the traffic runs."""
        return self.policy is not None or self.ladder is not None

    @property
    def is_quiet(self) -> bool:
        """Whether nobody watches and nothing happens."""
        bound = self.admission.queue_limit_count is not None
        loops = self.loop is not None or self.leaving is not None or self.lane is not None
        return not (self.is_watched or self.happenings or bound or loops or gives_up(self.clients))

    @property
    def in_lane(self) -> npt.NDArray[np.bool_] | None:
        """The requests in the batch lane; ``None`` without one."""
        return None if self.lane is None else self.batch

    def waiting_for(self, record: RunRecord) -> RunRecord:
        """The requests that somebody waits for: all of them, or all but those in the batch lane."""
        return record if self.in_lane is None else without_batch(record, self.in_lane)

    def controller(self) -> Controller:
        """Somebody new to watch: every replay needs its own."""
        scaler = None
        if self.setting is not None and self.policy is not None:
            scaler = scaler_of(self.setting, self.policy)
        return Controller(scaler, self.ladder)

    def world(self, controller: Controller | None = None) -> World | None:
        """The world of one replay, watched by ``controller`` or by somebody new; ``None`` where all is quiet."""
        if self.is_quiet:
            return None
        watching = controller or self.controller()
        scaler = watching.scaler
        return World(
            happenings=self.happenings,
            absent=self.absent if scaler is None else scaler.absent,
            clients=self.clients,
            admission=self.admission,
            batch=self.batch,
            lane=self.lane,
            closed_loop=self.loop,
            leaving=self.leaving,
            controller=watching if self.is_watched else None,
            tick_s=_TICK_S if self.setting is None else self.setting.tick_s,
            caps_waits=self.ladder is not None and self.ladder.caps_waits,
            looks_inside=scaler is not None and scaler.policy.looks_inside,
        )


def around_of(asked: Scenario, fleet: Fleet, trace: Trace) -> tuple[Around, Trace]:
    """What the scenario puts around a fleet, and the traffic as it is then sent.

    Raises:
        BadInput: a policy or a ladder that cannot work, a fleet that one policy cannot scale, or an event at a
            replica there is not.
    """
    trace, loop = looped(asked, trace)
    leaving, trace = leaving_of(trace)
    reads = None if asked.clients is None else asked.clients.reads
    ladder = None if asked.ladder is None else ladder_of(asked.ladder)
    lane, batch = lane_of(asked, trace), _batch(asked, trace)
    notes = () if ladder is None else without_effect(ladder, trace, batch)
    notes += () if leaving is None else (LEAVING,)
    smaller = () if asked.ladder is None else smaller_groups(asked, asked.ladder)
    notes += (SAME_TOKENS,) if smaller else ()
    notes += (*usual_door(asked), *too_late(asked, trace), *nobody_in("batch", batch if lane else None))
    clients, admission, spec = clients_of(asked), door_of(asked), asked.autoscaling
    if spec is None:
        versions = versions_of(asked, fleet)
        around = Around(
            fleet=replace(fleet, groups=(*versions.fleet.groups, *smaller)),
            ladder=ladder,
            batch=batch,
            happenings=happenings_of(asked, versions.fleet, others=versions.happenings),
            absent=versions.absent,
            clients=clients,
            admission=admission,
            lane=lane,
            loop=loop,
            leaving=leaving,
            reads_tokens_per_s=reads,
            notes=(*versions.notes, *notes),
        )
        return around, trace
    setting = setting_of(asked, spec, fleet, trace)
    around = Around(
        fleet=replace(setting.fleet, groups=(*setting.fleet.groups, *smaller)),
        happenings=setting.happenings,
        clients=clients,
        admission=admission,
        lane=lane,
        loop=loop,
        leaving=leaving,
        reads_tokens_per_s=reads,
        setting=setting,
        policy=policy_of(spec, setting, trace),
        ladder=ladder,
        batch=batch,
        notes=(cold_start_of(asked, spec, replace(fleet, groups=(setting.scaled,)))[1], *notes),
    )
    return around, trace


def _batch(asked: Scenario, trace: Trace) -> npt.NDArray[np.bool_] | None:
    """Which requests are batch; ``None`` where nobody says so."""
    if asked.batch is not None:
        everybody = np.ones(trace.request_count, dtype=np.bool_)
        return taken(asked.batch.takes, trace, "batch.takes", everybody, asked.seed)
    return None if asked.ladder is None else batch_of(asked.ladder, trace)


def looped(asked: Scenario, trace: Trace) -> tuple[Trace, ClosedLoop | None]:
    """The traffic as the users of the scenario send it; ``None``: it comes by the clock."""
    users = asked.users
    if users is None:
        return trace, None
    return workload.close_loop(
        trace, user_count=users.count, think_s=users.think or 0.0, ramp_s=users.ramp or 0.0, seed=asked.seed
    )
