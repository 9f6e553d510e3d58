"""``scaling`` on pools that a scenario names: ways to scale each in its place, and the best of each together."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tokenfleet import simulator
from tokenfleet.app.compose import Teller
from tokenfleet.app.pools_doors import gates_of, without_gates
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_lanes import with_lane
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.pools_run import SystemOf, promised, who_waits
from tokenfleet.app.pools_world import PoolWorlds, admission_before, check_pool_events, in_pool
from tokenfleet.app.scaling_compare import present_slo, ways_of
from tokenfleet.app.scaling_pools import ScaledPool, ScaledPools, most_of
from tokenfleet.app.scaling_question import cold_start_of
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.world_question import clients_of
from tokenfleet.contract import judge_minutes
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.stages import StagedRun
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.planner.scaling import Longs, ScalingSetting, Way, compare_scaling, gpu_hours, scaler_of, world_of
from tokenfleet.planner.systems import in_its_place


def compared_named(asked: Scenario, text: Trace, teller: Teller, system_of: SystemOf = pool_system) -> ScaledPools:
    """Compares ways to scale each pool with ``autoscaling``, then replays the best of each together.

    While one pool is looked at, the others that are scaled have all the replicas that they may have; those that are
    not, the replicas that they have. What is judged is the promise of the whole way.

    Args:
        asked: A scenario with ``pools``, some of them with ``autoscaling``.
        text: Its demand, text alone.
        teller: Told what is being done.
        system_of: The pools, from the scenario and its demand; those that the scenario names unless given.

    Raises:
        BadInput: no pool is scaled, a policy cannot work, or something is around the pools with which ways are not
            compared.
    """
    _refuse(asked)
    system = system_of(asked, text)
    check_pool_events(asked, system.named)
    has_doors = any(gates_of(system.pools))
    line = Line(asked, replace(system, pools=without_gates(system.pools)))
    teller.say("replaying: all replicas of all pools")
    calls = {name: run.trace for name, run in line.run(line.system.pools.fleets, {}).pools.items()}
    pools = tuple(_compared(line, pool, spec, calls[name], teller) for name, (pool, spec) in line.scaled.items())
    teller.say("replaying: all pools together")
    fleets = {**line.system.pools.fleets, **{pool.name: most_of(pool) for pool in pools}}
    scalers = {
        pool.name: world_of(pool.setting, scaler_of(pool.setting, pool.found.best.policy))
        for pool in pools
        if pool.found.best.policy is not None
    }
    run = line.run(fleets, scalers)
    return ScaledPools(
        pools=pools,
        minutes=judge_minutes(promised(line.system, run), pools[0].setting.slo),
        gpu_hours=sum(
            gpu_hours(run.pools[each.name].record, fleets[each.name]) for each in system.named if each.beside is None
        ),
        notes=tuple(_notes(line, run, has_doors=has_doors)),
    )


def _refuse(asked: Scenario) -> None:
    specs = asked.pools or {}
    mend = "leave it out: ways to scale are compared without"
    problems = []
    if not any(spec.is_scaled for spec in specs.values()):
        what = "no pool says how many replicas it may have"
        problems.append(Problem("pools", what, "write autoscaling: {max: 8} under each pool to scale"))
    if asked.users is not None:
        problems.append(Problem("users", "send requests as fast as they are answered, each way other ones", mend))
    what = "holds offline work, and ways to scale a pool are judged by the minutes of those who wait"
    problems += [
        Problem(f"pools.{name}.window", what, "leave its autoscaling out, or the window")
        for name, spec in specs.items()
        if spec.window is not None and spec.is_scaled
    ]
    if problems:
        raise BadInput(problems)


def _notes(line: "Line", run: StagedRun, *, has_doors: bool) -> Iterator[str]:
    """What the GPU-hours hold besides, and what is left out."""
    for each in line.system.named:
        if each.scaling is None and each.beside is None:
            # A new version that events bring stands behind it in the fleet.
            count = each.fleet.groups[0].replica_count
            hours = gpu_hours(run.pools[each.name].record, each.fleet)
            replicas = "1 replica" if count == 1 else f"{count} replicas"
            yield f"{each.name} stays at {replicas}: {hours:.3g} of the GPU-hours"
    if line.waits is not None:
        yield "Minutes are those of requests that somebody waits for; simulate says what becomes of offline work."
    if has_doors:
        yield "Ladders are left out: ways to scale are compared with nothing given up."


def _compared(line: "Line", pool: NamedPool, spec: AutoscalingSpec, calls: Trace, teller: Teller) -> ScaledPool:
    try:
        setting, ways = line.ways(pool, spec, calls)
    except BadInput as error:
        raise BadInput(in_pool(problem, pool) for problem in error.problems) from None
    place = InLine(line, pool.name)
    found = compare_scaling(
        line.system.trace,
        setting,
        ways,
        capacity_per_s=spec.capacity,
        told=lambda way: teller.say(f"replaying: {pool.name}, {way}"),
        replay=place,
        calls=calls,
        alone=place.alone,
        among=line.waits,
    )
    cold_start = cold_start_of(line.asked, spec, pool.fleet)[1]
    return ScaledPool(name=pool.name, found=found, setting=setting, cold_start=cold_start)


class Line:
    """The pools of a scenario, replayed again and again while ways to scale one of them are compared."""

    def __init__(self, asked: Scenario, system: PoolSystem) -> None:
        """Take the pools of a scenario, nobody at the doors before them."""
        self.asked, self.system = asked, system
        self.scaled = {each.name: (each, each.scaling) for each in system.named if each.scaling is not None}
        self.waits = who_waits(system)

    def ways(self, pool: NamedPool, spec: AutoscalingSpec, calls: Trace) -> tuple[ScalingSetting, list[Way]]:
        """What all ways to scale a pool have in common, and the ways: the scenario's own first.

        Raises:
            BadInput: its policy cannot work.
        """
        reads = pool.does in ("reads", "sees")
        setting, ways = ways_of(
            self.asked, spec, pool.fleet, calls, pool=pool.name, keeps_kv=pool.keeps_kv, answers=not reads
        )
        # The promise is one of the whole way, to everybody, whoever comes to this pool.
        slo = present_slo(self.asked.slo.targets(), self.system.trace)
        return replace(setting, slo=slo, admission=admission_before(self.asked, pool)), ways

    def run(self, fleets: Mapping[str, Fleet], worlds: Mapping[str, World]) -> StagedRun:
        """Replays all pools, some of them with a world of their own; the scaled ones among the others stand still."""
        around = PoolWorlds(self.asked, self.system.named)

        def world(name: str, calls: Trace) -> World | None:
            if name not in self.scaled:
                return around(name, calls)
            return with_lane(self.asked, self.scaled[name][0], calls, worlds.get(name) or self.still(name))

        clients = self.asked.clients
        return simulator.replay_stages(
            self.system.trace,
            replace(self.system.pools, fleets=fleets),
            worlds=world,
            read_tokens_per_s=None if clients is None else clients.reads,
        )

    def still(self, name: str) -> World:
        """A pool whose replicas are ready all the time."""
        return World(clients=clients_of(self.asked), admission=admission_before(self.asked, self.scaled[name][0]))


class InLine:
    """Replays one pool in its place among the others of a scenario.

    What it tells of requests is what their users see, and what it tells of replicas is about those of that pool.
    """

    def __init__(self, line: Line, name: str) -> None:
        """Stand in for a replay; ``name`` is the pool."""
        self._line, self._name = line, name

    def __call__(self, trace: Trace, fleet: Fleet, *, world: World | None = None, **_: object) -> RunRecord:
        """Replays the demand with ``fleet`` in the pool, and ``world`` around it."""
        if trace is not self._line.system.trace:
            raise ValueError("pools of a scenario are replayed with the demand that they were looked up for")
        line = self._line
        run = line.run({**line.system.pools.fleets, self._name: fleet}, {} if world is None else {self._name: world})
        found = in_its_place(run, self._name)
        if line.waits is None:
            return found
        seen = promised(line.system, run)
        rows = requests_of(found, line.waits)
        return replace(rows, gaps=seen.gaps, peak_gaps=seen.peak_gaps, class_gaps=seen.class_gaps)

    def alone(self, spaced: Trace, rows: Longs) -> RunRecord:
        """Replays some requests of the demand, sent one at a time, with one quiet replica of each kind."""
        return simulator.replay_stages(spaced, simulator.narrowed(self._line.system.pools, rows)).record
