"""What a replay refuses of the world around a fleet."""

import difflib
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import get_args

import numpy as np

from tokenfleet.domain.errors import Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Ints
from tokenfleet.domain.world import (
    BY_CLOCK,
    NEXT_IN_LINE,
    NO_CAP,
    Admission,
    BatchLane,
    Clients,
    ClosedLoop,
    Door,
    Happening,
    HappeningKind,
    Leaving,
    World,
)
from tokenfleet.simulator.layout import VLLM
from tokenfleet.simulator.rules import rule_set

LONGEST_WAIT_S = 86_400.0
"""A client waits a day at most."""
SHORTEST_TICK_S = 1e-6
SHORTEST_TIMEOUT_S = 1e-6
DAY_S = 86_400.0


def world_problems(world: World, request_count: int, replica_count: int) -> Iterator[Problem]:
    """Everything that is wrong with a world for so many requests and replicas."""
    for index, happening in enumerate(world.happenings):
        yield from _happening_problems(f"world.happenings[{index}]", happening, replica_count)
    for index, (before, after) in enumerate(pairwise(world.happenings)):
        if after.time_s < before.time_s:
            what = f"{after.time_s} s comes after {before.time_s} s"
            yield Problem(f"world.happenings[{index + 1}]", what, "sort the happenings by time")
    yield from _number_problems("world.absent", world.absent, replica_count)
    if not SHORTEST_TICK_S <= world.tick_s < math.inf:
        yield Problem("world.tick_s", f"{world.tick_s} s", "at least a microsecond")
    yield from client_problems("world", world.clients)
    yield from _admission_problems(world.admission)
    yield from door_problems("world.door", world.door)
    if world.batch is not None and len(world.batch) != request_count:
        yield Problem("world.batch", f"{len(world.batch)} entries for {request_count} requests", "one per request")
    if world.leaving is not None:
        yield from _leaving_problems(world.leaving, request_count)
    if world.lane is not None:
        yield from _lane_problems(world.lane, world)
    if world.closed_loop is not None:
        yield from loop_problems(world.closed_loop, request_count)
    if world.calls is not None and len(world.calls) != request_count:
        yield Problem("world.calls", f"{len(world.calls)} entries for {request_count} requests", "one per request")


def _happening_problems(where: str, happening: Happening, replica_count: int) -> Iterator[Problem]:
    kinds = get_args(HappeningKind)
    if happening.kind not in kinds:
        near = difflib.get_close_matches(str(happening.kind), kinds, n=1, cutoff=0.0)
        yield Problem(f"{where}.kind", f"nothing is called {happening.kind!r}", f"did you mean {near[0]!r}?")
    if not 0.0 <= happening.time_s < math.inf:
        yield Problem(f"{where}.time_s", f"{happening.time_s} is no time of the replay", "seconds from 0 on")
    if not 0.01 <= happening.step_time_factor <= 1000.0:
        yield Problem(f"{where}.step_time_factor", f"{happening.step_time_factor}", "0.01 to 1000")
    if (happening.kind == "door") != (happening.door is not None):
        yield Problem(
            f"{where}.door", f"{happening.kind} with door {happening.door}", "kind door, and only it, has one"
        )
    if happening.door is not None:
        yield from door_problems(f"{where}.door", happening.door)
    yield from _number_problems(f"{where}.replicas", happening.replicas, replica_count)


def door_problems(where: str, door: Door) -> Iterator[Problem]:
    """What is wrong with a door."""
    for name in (
        "quota_tokens_per_s",
        "quota_burst_tokens",
        "session_limit_count",
        "context_cap_tokens",
        "output_cap_tokens",
        "smaller_input_tokens",
        "smaller_output_tokens",
    ):
        value = getattr(door, name)
        if not 0 <= value <= NO_CAP:
            yield Problem(f"{where}.{name}", f"{value}", f"0 to {NO_CAP}, which stands for no limit")
    yield from _wait_problems(f"{where}.wait_cap_s", door.wait_cap_s)


def _number_problems(where: str, numbers: tuple[int, ...], replica_count: int) -> Iterator[Problem]:
    wrong = [number for number in numbers if not 0 <= number < replica_count]
    if wrong:
        yield Problem(where, f"no replica has the number {wrong[0]}", f"0 to {replica_count - 1}")


def client_problems(where: str, clients: Clients) -> Iterator[Problem]:
    """What is wrong with the clients of something."""
    if not 1 <= clients.attempt_count <= 1000:
        yield Problem(f"{where}.clients.attempt_count", f"{clients.attempt_count}", "1 to 1000")
    for name in ("backoff_s", "longest_backoff_s"):
        value = getattr(clients, name)
        if not 0.0 <= value <= LONGEST_WAIT_S:
            yield Problem(f"{where}.clients.{name}", f"{value} s", "0 up to a day")
    for name in ("first_token_timeout_s", "timeout_s"):
        timeout_s = getattr(clients, name)
        if timeout_s is not None and not SHORTEST_TIMEOUT_S <= timeout_s <= LONGEST_WAIT_S:
            yield Problem(f"{where}.clients.{name}", f"{timeout_s} s", "a microsecond up to a day, or None")
    rate = clients.read_tokens_per_s
    if rate is not None and not 0.0 < rate < math.inf:
        what = f"{rate} tokens/s"
        yield Problem(f"{where}.clients.read_tokens_per_s", what, "above 0, or None: as fast as they come")


def _admission_problems(admission: Admission) -> Iterator[Problem]:
    for name in ("retry_after_s", "session_idle_s"):
        value = getattr(admission, name)
        if not 0.0 <= value <= LONGEST_WAIT_S:
            yield Problem(f"world.admission.{name}", f"{value} s", "0 up to a day")
    if admission.queue_limit_count is not None and admission.queue_limit_count < 1:
        yield Problem("world.admission.queue_limit_count", f"{admission.queue_limit_count}", "at least 1")
    yield from _wait_problems("world.admission.deadline_s", admission.deadline_s)


def _wait_problems(where: str, longest_s: float | None) -> Iterator[Problem]:
    if longest_s is not None and not SHORTEST_TIMEOUT_S <= longest_s <= LONGEST_WAIT_S:
        yield Problem(where, f"{longest_s} s", "a microsecond up to a day, or None")


def _leaving_problems(leaving: Leaving, request_count: int) -> Iterator[Problem]:
    for name, column in (("after_tokens", leaving.after_tokens), ("after_s", leaving.after_s)):
        if column is not None and len(column) != request_count:
            what = f"{len(column)} entries for {request_count} requests"
            yield Problem(f"world.leaving.{name}", what, "one per request")
    if leaving.after_tokens is not None and np.any(leaving.after_tokens < 0):
        what = "a negative number of tokens"
        yield Problem("world.leaving.after_tokens", what, "at least 0, which stands for staying")
    if leaving.after_s is not None:
        times_s = leaving.after_s
        if not np.all((times_s == math.inf) | ((times_s >= SHORTEST_TIMEOUT_S) & (times_s <= LONGEST_WAIT_S))):
            what = "a time that is none"
            yield Problem("world.leaving.after_s", what, "a microsecond up to a day, or inf, which stands for staying")


def _lane_problems(lane: BatchLane, world: World) -> Iterator[Problem]:
    if world.batch is None:
        yield Problem("world.lane", "a lane, and nobody says which requests are batch", "give world.batch")
    if not 0.0 <= lane.opens_s <= DAY_S or not 0.0 < lane.open_for_s <= DAY_S:
        what = f"opens at {lane.opens_s} s for {lane.open_for_s} s"
        yield Problem("world.lane.opens_s", what, "a time of day, and a part of a day above 0")
    if not 0.0 < lane.slot_fraction <= 1.0:
        yield Problem("world.lane.slot_fraction", f"{lane.slot_fraction}", "above 0, at most 1")
    if lane.kept_count < 0:
        yield Problem("world.lane.kept_count", f"{lane.kept_count}", "at least 0")
    for name, value in (("patience_s", lane.patience_s), ("wait_s", lane.wait_s)):
        if not 0.0 <= value <= LONGEST_WAIT_S:
            yield Problem(f"world.lane.{name}", f"{value} s", "0 up to a day")


def lane_fleet_problems(fleet: Fleet) -> Iterator[Problem]:
    """What a batch lane asks of a fleet."""
    if fleet.router == "by_tier":
        yield Problem("fleet.router", "by_tier beside a batch lane, which has tiers of its own", "take another router")
    for index, group in enumerate(fleet.groups):
        engine = group.replica.deployment.engine
        where, why = f"fleet.groups[{index}].engine", "beside a batch lane, whose batch gives way by rules of its own"
        if rule_set(engine.name) != VLLM:
            yield Problem(where, f"{engine.name} {why}", "take vllm, or leave batch out")
        if engine.scheduling != "fcfs":
            yield Problem(f"{where}.scheduling", f"{engine.scheduling} {why}", "take fcfs, or leave batch out")
        if engine.speculation is not None:
            what = "speculative decoding beside a batch lane, which is replayed without drafts"
            yield Problem(f"{where}.speculation", what, "leave it or batch out")


def _end_problems(after: Ints, end_count: Ints) -> Iterator[Problem]:
    """What is wrong with requests that wait for the ends of several: those they wait for wait for nobody else."""
    where = "world.closed_loop.end_count"
    if len(end_count) != len(after):
        yield Problem(where, f"{len(end_count)} entries for {len(after)} requests", "one per request")
        return
    follows = after >= 0
    wrong = np.flatnonzero((end_count < 1) | (follows & (end_count > after + 1)))
    if len(wrong):
        yield Problem(f"{where}[{wrong[0]}]", f"{end_count[wrong[0]]}", "at least 1, and no more than there are")
        return
    awaited = np.unique(np.stack([after - end_count + 1, after])[:, follows], axis=1)
    if np.any(awaited[0, 1:] <= awaited[1, :-1]):
        what = "a request is waited for by itself and among others"
        yield Problem(where, what, "those that wait for one of several wait for all of them")


def loop_problems(loop: ClosedLoop, request_count: int) -> Iterator[Problem]:
    """What is wrong with a closed loop."""
    where = "world.closed_loop"
    after, delay_s = np.asarray(loop.after), np.asarray(loop.delay_s)
    columns = (
        ("after", after),
        ("delay_s", delay_s),
        ("only_after_success", loop.only_after_success),
        ("marks", loop.marks),
        ("unread", loop.unread),
    )
    for name, column in columns:
        if column is not None and len(column) != request_count:
            yield Problem(f"{where}.{name}", f"{len(column)} entries for {request_count} requests", "one per request")
            return
    late = np.flatnonzero((after < NEXT_IN_LINE) | (after >= np.arange(request_count)))
    if len(late):
        row = int(late[0])
        yield Problem(f"{where}.after[{row}]", f"{after[row]}", f"an earlier request, {BY_CLOCK} or {NEXT_IN_LINE}")
    if loop.end_count is not None:
        yield from _end_problems(after, np.asarray(loop.end_count))
    if np.any(after == NEXT_IN_LINE) and not np.any(after == BY_CLOCK):
        yield Problem(f"{where}.after", "a line and nobody to start it", "let at least one request come by the clock")
    wrong = np.flatnonzero((after != BY_CLOCK) & ~((delay_s >= 0.0) & (delay_s <= LONGEST_WAIT_S)))
    if len(wrong):
        row = int(wrong[0])
        yield Problem(f"{where}.delay_s[{row}]", f"{delay_s[row]} s", "0 up to a day")
