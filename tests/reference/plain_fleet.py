"""A fleet of plain replicas and the world around it, slow and obvious. The kernel must equal it exactly.

Events in order of time, at equal times arrivals before step boundaries; between two events, what happens to replicas,
then the controller, then samples.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from reference.plain_engine import NEVER, Replica, Request
from tokenfleet import performance
from tokenfleet.control import (
    home_replica,
    least_in_flight,
    least_kv,
    least_loaded,
    least_waiting,
    narrowest_fit,
    power_of_two,
    prefix_affinity,
    round_robin,
    scrambled,
)
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import Status
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import BECOMES, NO_CAP, Door, FleetView, Happening, ReplicaState, World

GAP_BOUNDS_PS = [0, *(math.ceil(2.0 ** (10 + i / 32)) for i in range(50 * 32 + 1))]
LIVES = {ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING}


class PlainRun:
    """A fleet of plain replicas, driven in order of time, and what happens around it."""

    def __init__(self, trace: Trace, fleet: Fleet, peak_window_s=None, telemetry_interval_s=None, world=None) -> None:
        self.fleet, self.world = fleet, world or World()
        self.shares_prefixes = trace.prefix_node is not None
        self.physics = [group.replica for group in fleet.groups for _ in range(group.replica_count)]
        groups = [(group, number) for group in fleet.groups for number in range(group.replica_count)]
        self.berths = [None if group.berth is None else group.berth + number for group, number in groups]
        self.free = dict.fromkeys(self.berths, 0)  # when the gpus that several share are
        self.replicas = [self.fresh(number) for number in range(len(self.physics))]
        self.done = [Counter() for _ in self.physics]
        weights = [group.weight_ratio for group in fleet.groups for _ in range(group.replica_count)]
        self.bounds = self.bounds_of(trace)
        kinds = [(group.pool, group.is_smaller_model) for group, _ in groups]
        smaller = [(0, False), (0, True)] if self.world.calls is None else [(pool, False) for pool, _ in kinds]
        self.pools = [[n for n, each in enumerate(kinds) if each == kind] for kind in dict.fromkeys(smaller)]
        self.turns = [min(pool, default=0) for pool in self.pools]
        self.sessions = {}  # requests in flight and the end of the last one
        self.costs = [max(1, round(4096 * min(weights) / weight)) for weight in weights]
        self.scraped = [(0, 0, 0)] * len(self.replicas)
        self.scrape_interval = round(fleet.scrape_s * 1e12)
        self.in_world = world is not None
        self.states = [ReplicaState.READY] * len(self.replicas)
        for number in self.world.absent:
            self.states[number] = ReplicaState.ABSENT
        self.since, self.spells = [0] * len(self.states), []
        self.factors = [1.0] * len(self.states)
        self.agenda = [(round(happening.time_s * 1e12), happening) for happening in self.world.happenings]
        self.decisions = []
        self.entered = self.refused = self.lost = self.end = 0
        self.given_up = {Status.CANCELLED: 0, Status.TIMED_OUT: 0, Status.REJECTED_DEADLINE: 0}
        self.wasted = 0
        self.told = (0, 0)
        self.tick = NEVER if self.world.controller is None else round(self.world.tick_s * 1e12)
        self.last_tick = -1
        self.requests = requests_of(trace)
        self.door = self.world.door
        full = self.door.quota_burst_tokens * 1_000_000
        self.buckets = {tenant: [full, 0] for tenant in range(len(trace.tenants))}
        self.introduce(trace)
        self.late, self.line = [], deque()
        self.lanes, self.on_their_way = defaultdict(deque), {}  # by pool
        self.close_loop()
        self.gaps, self.peak_gaps = [0] * len(GAP_BOUNDS_PS[:-1]), [0] * len(GAP_BOUNDS_PS[:-1])
        self.classes = classes_of(trace, None if self.world.lane is None else self.world.batch)
        self.class_gaps = defaultdict(lambda: ([0] * len(self.gaps), [0] * len(self.gaps)))
        self.peak = (0, 0) if peak_window_s is None else tuple(round(time_s * 1e12) for time_s in peak_window_s)
        self.prefill = self.decode = self.cached_prefix = self.steps = self.mixed_steps = 0
        self.samples, self.works = [], []
        self.interval = NEVER if telemetry_interval_s is None else round(telemetry_interval_s * 1e12)
        self.play()
        for request in self.requests if self.in_world else ():
            request.status = request.status if request.attempts else Status.CANCELLED

    def fresh(self, number: int) -> Replica:
        return Replica(self.physics[number], self, number, self.berths[number])

    def play(self) -> None:
        clocked = deque(request for request in self.requests if not request.late)
        ticks = samples = scrapes = 1
        while True:
            replica = min(self.replicas, key=lambda replica: replica.event)
            late = self.late[0][0] if self.late else NEVER
            arrival = min(clocked[0].arrival if clocked else NEVER, late)
            alarm, leaver = self.next_alarm()
            coming = min(replica.event, arrival, alarm)
            due = self.agenda[0][0] if self.agenda else NEVER
            scrape = scrapes * self.scrape_interval
            pause = min(due, scrape, ticks * self.tick, samples * self.interval, NEVER)
            lane_waits = self.lane_waits()
            if coming > pause and (coming < NEVER or lane_waits or min(due, samples * self.interval) < NEVER):
                if due == pause:
                    self.happen(*self.agenda.pop(0))
                elif scrape == pause:
                    self.scrape(pause, is_idle=coming == NEVER)
                    scrapes += 1
                elif ticks * self.tick == pause:
                    self.look(pause, is_idle=coming == NEVER)
                    ticks += 1
                else:
                    self.samples.append([self.gauges(replica) for replica in self.replicas])
                    self.works.append([self.work(replica, pause) for replica in self.replicas])
                    samples += 1
                    if coming == NEVER and not lane_waits:
                        return
            elif coming == NEVER:
                return
            elif coming == arrival:
                self.come(clocked.popleft() if clocked and clocked[0].arrival <= late else heappop(self.late)[2])
            else:
                self.go_on(replica, alarm, leaver)

    def go_on(self, replica: Replica, alarm: int, leaver: Request | None) -> None:
        if alarm <= replica.event:
            self.give_up(leaver, alarm)
        else:
            replica.boundary()

    def come(self, request: Request) -> None:
        """A request comes, unless it is a mark or what it waited for came to nothing."""
        if request.mark:
            request.first_arrival = request.arrival
        if request.mark or request.doomed:
            self.tell(request, request.arrival, well=not request.doomed)
        else:
            self.arrive(request)

    def arrive(self, request: Request) -> None:
        if self.world.lane is None or not request.batch:
            self.admit(request)
            return
        now = request.arrival
        if not self.waits_in_lane(request):
            self.admit(request)
            self.release_next(request.pool, now)

    # ---- the batch lane

    def waits_in_lane(self, request: Request) -> bool:
        lane, now = self.world.lane, request.arrival
        request.first_arrival = now if request.first_arrival < 0 else request.first_arrival
        if self.on_their_way.get(request.pool) is request:
            del self.on_their_way[request.pool]
        elif self.lanes[request.pool] or request.pool in self.on_their_way:
            self.lanes[request.pool].append(request)
            return True
        day, since = 86_400_000_000, now // 1_000_000 - round(lane.opens_s * 1e6)
        if since % day >= round(lane.open_for_s * 1e6):
            self.on_their_way[request.pool] = request
            self.send(request, now + (day - since % day) * 1_000_000)
            return True
        limit = self.world.admission.queue_limit_count or NEVER
        if any(self.has_room(number, limit, request) for number in self.ready(request.pool)):
            return False
        self.lanes[request.pool].appendleft(request)
        return True

    def release_next(self, pool: int, now: int) -> None:
        if self.lanes[pool] and pool not in self.on_their_way:
            self.on_their_way[pool] = self.lanes[pool].popleft()
            self.send(self.on_their_way[pool], now + 1)

    def release_all(self, now: int) -> None:
        for pool in list(self.lanes):
            self.release_next(pool, now)

    def lane_waits(self) -> bool:
        return any(lane and pool not in self.on_their_way for pool, lane in self.lanes.items())

    def give_up_lane(self, time: int) -> None:
        """Nothing will happen any more, so nobody will serve those in the lane."""
        comes = self.world.controller is not None and ReplicaState.STARTING in self.states
        if self.agenda or comes or not self.lane_waits():
            return
        waiting = [request for pool in sorted(self.lanes) for request in self.lanes[pool]]
        self.lanes.clear()
        for request in waiting:
            request.arrival = time
            self.entered += 1
            request.attempts += 1
            self.refused += 1
            least = round(self.world.admission.retry_after_s * 1e12)
            self.come_to_nothing(request, time, least, Status.REJECTED_NOBODY_READY)

    def admit(self, request: Request) -> None:
        self.entered += 1
        request.attempts += 1
        request.first_arrival = request.arrival if request.first_arrival < 0 else request.first_arrival
        request.degraded, number = 0, None
        short = self.is_short(request)
        refusal = self.knock(request, capped=not short)
        if refusal is None and short:
            number = self.smaller_route(request)
            refusal = self.knock(request, capped=True) if number is None else None
        if refusal is not None:
            self.refused += 1
            self.come_to_nothing(request, request.arrival, round(self.world.admission.retry_after_s * 1e12), refusal)
            return
        if number is None:
            number = self.route(request, request.pool)
        if number is None:
            ready = any(self.serves(number, request) for number in self.ready(request.pool))
            status = Status.REJECTED_QUEUE_FULL if ready else Status.REJECTED_NOBODY_READY
            self.refused += 1
            self.come_to_nothing(request, request.arrival, round(self.world.admission.retry_after_s * 1e12), status)
            return
        index = request.degraded or request.pool
        pool = self.pools[index]
        self.turns[index] = pool[(pool.index(number) + 1) % len(pool)]
        request.replica, replica = number, self.replicas[number]
        if self.too_long(replica, request):
            request.status = Status.REJECTED_TOO_LONG
            self.leave(request, request.arrival)
            return
        if self.door.quota_tokens_per_s != NO_CAP and request.tenant is not None:
            self.buckets[request.tenant][0] -= (request.input + request.output) * 1_000_000
        self.in_session(request)[0] += 1
        free = replica.front_end if replica.engine.front_end == "serial" else 0
        request.ready = replica.front_end = max(request.arrival, free) + replica.step.request_ps
        replica.in_flight += 1
        request.sent, request.leaves = request.arrival, request.arrival + request.stays
        waits = [each for each in (self.world.admission.deadline_s, self.door.wait_cap_s) if each is not None]
        request.due = request.arrival + round(min(waits) * 1e12) if waits else NEVER
        replica.batch_in_flight += request.batch
        replica.waiting.append(request)
        if replica.event == NEVER:
            replica.clock = replica.horizon = replica.event = request.ready

    def too_long(self, replica: Replica, request: Request) -> bool:
        """Whether it could never be served there, even alone."""
        computed = request.input + max(request.output - 1, 0)
        at_once = request.input if replica.rules == "trtllm" else computed
        limit = replica.engine.context_limit_tokens
        held = computed if replica.rules not in {"sglang", "trtllm"} else request.input + request.output
        blocks = replica.most_blocks(0, held + replica.drafted) + replica.physics.kv_fixed_block_count
        blocks += 2 * (replica.growth + replica.windowed) if replica.rules == "sglang" else 0
        return (
            blocks > replica.physics.kv_block_count
            or (limit is not None and request.input + request.output > limit)
            or (not replica.engine.chunked_prefill and at_once > replica.engine.max_batched_tokens)
        )

    def introduce(self, trace: Trace) -> None:
        """What the door sees of each request beside its lengths."""
        for request in self.requests:
            request.pool = 0 if self.world.calls is None else int(self.world.calls[request.row])
            request.batch = self.world.batch is not None and bool(self.world.batch[request.row])
            if trace.tenant is not None and trace.tenant[request.row] >= 0:
                request.tenant = int(trace.tenant[request.row])
            leaving = self.world.leaving
            if leaving is not None and leaving.after_tokens is not None:
                tokens = int(leaving.after_tokens[request.row])
                request.stays_tokens = tokens if tokens < request.output else 0
            if leaving is not None and leaving.after_s is not None and leaving.after_s[request.row] < math.inf:
                request.stays = round(float(leaving.after_s[request.row]) * 1e12)

    # ---- sessions

    def in_session(self, request: Request) -> list:
        """Requests in flight of its session, and the end of the last one; without a session it is one of its own."""
        key = ("alone", request.row) if request.session is None else request.session
        return self.sessions.setdefault(key, [0, None])

    def is_open(self, session: list, now: int) -> bool:
        idle = round(self.world.admission.session_idle_s * 1e12)
        return session[0] > 0 or (session[1] is not None and session[1] + idle > now)

    def end_in_session(self, request: Request, time: int) -> None:
        session = self.in_session(request)
        session[0] -= 1
        session[1] = None if request.session is None else time

    # ---- the door

    def is_short(self, request: Request) -> bool:
        """Whether the door sends it to the smaller model."""
        short = request.input <= self.door.smaller_input_tokens and request.output <= self.door.smaller_output_tokens
        return short and not request.batch and self.world.calls is None and bool(self.pools[1])

    def knock(self, request: Request, *, capped: bool) -> Status | None:
        """How the door turns a request away, if it does; caps are for those that the model itself answers."""
        door, needed = self.door, request.input + request.output
        left = NO_CAP
        if door.quota_tokens_per_s != NO_CAP and request.tenant is not None:
            bucket, now = self.buckets[request.tenant], request.arrival // 1_000_000
            full = door.quota_burst_tokens * 1_000_000
            bucket[0] = min(bucket[0] + (now - bucket[1]) * door.quota_tokens_per_s, full)
            bucket[1] = now
            left = max(bucket[0] // 1_000_000, 0)
        if request.batch and not door.batch_is_open:
            return Status.REJECTED_BATCH_SHED
        if needed > left:
            return Status.REJECTED_QUOTA_SPENT
        opens = not self.is_open(self.in_session(request), request.arrival)
        count = sum(self.is_open(session, request.arrival) for session in self.sessions.values())
        if opens and count >= door.session_limit_count:
            return Status.REJECTED_NEW_SESSION
        if not capped:
            return None
        if needed > door.context_cap_tokens:
            return Status.REJECTED_CONTEXT_CAP
        return Status.REJECTED_OUTPUT_CAP if request.output > door.output_cap_tokens else None

    def open_door(self, door: Door, time: int) -> None:
        if (door.quota_tokens_per_s, door.quota_burst_tokens) != (
            self.door.quota_tokens_per_s,
            self.door.quota_burst_tokens,
        ):
            for bucket in self.buckets.values():
                bucket[:] = [door.quota_burst_tokens * 1_000_000, time // 1_000_000]
        self.door = door

    def smaller_route(self, request: Request) -> int | None:
        """Where the smaller model answers it, if it can."""
        number = self.route(request, 1)
        if number is None or self.too_long(self.replicas[number], request):
            return None
        request.degraded = 1
        self.entered -= 1
        return number

    def ready(self, pool: int) -> list[int]:
        return [number for number in self.pools[pool] if self.states[number] == ReplicaState.READY]

    def bounds_of(self, trace: Trace) -> list:
        """What each replica serves by length or by tier: prompts or places of priorities up to there, and its rank."""
        known = [0] if trace.priority is None else sorted(set(trace.priority.tolist()))
        self.priorities = known
        groups = [(math.inf if g.up_to is None else g.up_to, g.replica_count) for g in self.fleet.groups]
        order = sorted({bound for bound, _ in groups})
        bounds = []
        for bound, count in groups:
            largest = sum(priority <= bound for priority in known) - 1 if self.fleet.router == "by_tier" else bound
            bounds += [(largest, order.index(bound))] * count
        return bounds

    def value(self, request: Request) -> int:
        return request.input if self.fleet.router == "by_length" else self.priorities.index(request.priority)

    def serves(self, number: int, request: Request) -> bool:
        bounded = self.fleet.router in {"by_length", "by_tier"}
        return not bounded or self.value(request) <= self.bounds[number][0]

    def route(self, request: Request, pool: int) -> int | None:
        """The ready replica with the lowest score of those that have room in their queue."""
        everybody = len(self.replicas)
        ready = sorted(self.ready(pool), key=lambda number: (number - self.turns[pool]) % everybody)
        scores = self.scores(request, ready, self.pools[pool])
        limit = self.world.admission.queue_limit_count or NEVER
        open_scores = {s: n for s, n in zip(scores, ready, strict=True) if self.has_room(n, limit, request)}
        return open_scores[min(open_scores)] if open_scores else None

    def has_room(self, number: int, limit: int, request: Request) -> bool:
        if not self.serves(number, request) or self.waiting_at(number) >= limit:
            return False
        lane, replica = self.world.lane, self.replicas[number]
        if lane is None or not request.batch:
            return True
        slots = max(1, int(lane.slot_fraction * replica.engine.max_sequence_count))
        return replica.in_flight < slots or replica.batch_in_flight < lane.kept_count

    def scores(self, request: Request, ready: list[int], pool: list[int]) -> list[int]:
        count = len(ready)
        in_flight = [self.replicas[number].in_flight for number in ready]
        seen = [self.scraped[number] for number in ready]
        costs = [self.costs[number] for number in ready]
        each = list(zip(range(count), in_flight, seen, costs, strict=True))
        if self.fleet.router == "round_robin":
            return [round_robin(after) for after in range(count)]
        if self.fleet.router == "least_in_flight":
            return [least_in_flight(load, after) for after, load, _, _ in each]
        if self.fleet.router == "least_loaded":
            return [least_loaded(load, after, count, cost) for after, load, _, cost in each]
        if self.fleet.router == "least_waiting":
            return [least_waiting(waiting, then, load, a, count) for a, load, (waiting, _, then), _ in each]
        if self.fleet.router == "least_kv":
            return [least_kv(used, then, load, after, count) for after, load, (_, used, then), _ in each]
        if self.fleet.router in {"by_length", "by_tier"}:
            value, bounds = self.value(request), [self.bounds[number] for number in ready]
            return [
                narrowest_fit(value, bound, rank, waiting, then, load, a, count)
                for (a, load, (waiting, _, then), _), (bound, rank) in zip(each, bounds, strict=True)
            ]
        if self.fleet.router == "power_of_two":
            drawn = self.drawn(request, sorted(ready))
            return [power_of_two(load, a, count, ready[a] in drawn) for a, load, _, _ in each]
        key = request.session if request.session is not None else (request.keys[0][1] if request.keys else None)
        home = -1
        if key is not None and ready:
            place = home_replica(key, len(pool))
            while pool[place] not in ready:
                place = (place + 1) % len(pool)
            home = pool[place]
        return [
            prefix_affinity(load, after, count, number == home, sum(in_flight))
            for after, (number, load) in enumerate(zip(ready, in_flight, strict=True))
        ]

    def drawn(self, request: Request, ready: list[int]) -> list[int]:
        """Two different ones of those that are ready, or the only one."""
        ready, drawn = list(ready), []
        salt = 2 * request.attempts - 2 if self.in_world else 0
        while ready and len(drawn) < 2:
            drawn.append(ready.pop(scrambled(request.row, salt + len(drawn)) % len(ready)))
        return drawn

    def look(self, time: int, *, is_idle: bool) -> None:
        if not is_idle or self.lane_waits():
            self.ask(time)
        if is_idle:
            self.give_up_lane(time)

    def scrape(self, time: int, *, is_idle: bool) -> None:
        """What the router sees until the next scrape: waiting, millionths of the blocks in use, in flight."""
        if is_idle and self.world.controller is None:
            self.give_up_lane(time)
        for number, replica in enumerate(self.replicas):
            _, waiting, used = self.gauges(replica)
            blocks = replica.physics.kv_block_count
            self.scraped[number] = waiting, used * 1_000_000 // blocks, replica.in_flight

    def waiting_at(self, number: int) -> int:
        return self.gauges(self.replicas[number])[1]

    # ---- clients

    def close_loop(self) -> None:
        if self.world.closed_loop is None:
            return
        loop = self.world.closed_loop
        for request, after, delay_s in zip(self.requests, loop.after, loop.delay_s, strict=True):
            request.late = after != -1
            request.mark = loop.marks is not None and bool(loop.marks[request.row])
            delay = 0 if after == -1 else round(float(delay_s) * 1e12)
            if after >= 0:
                self.requests[after].followers.append((request, delay))
                first = after if loop.end_count is None else after - int(loop.end_count[request.row]) + 1
                for cause in range(first, after):
                    self.requests[cause].followers.append((request, delay))
                request.ends_left = after - first + 1
            elif after == -2:
                self.line.append((request, delay))

    def send(self, request: Request, time: int) -> None:
        request.arrival = time
        follows = self.world.closed_loop is not None and self.world.closed_loop.after[request.row] != -1
        heappush(self.late, (time, (follows, request.row, request.late), request))

    def leave(self, request: Request, time: int) -> None:
        """A request has come to nothing: whoever waits for its end comes, unless only an answer counts."""
        request.left = time
        self.end = max(self.end, time)
        self.tell(request, time, well=False)

    def free_user(self, request: Request, time: int) -> None:
        self.tell(request, time, well=True)

    def tell(self, request: Request, time: int, *, well: bool) -> None:
        """Those that wait for a request come, or else the next in line; or never, after success alone, without it."""
        loop = self.world.closed_loop
        followers = request.followers or ([self.line.popleft()] if self.line else [])
        for follower, delay in followers:
            follower.ends_left -= 1
            choosy = loop.only_after_success is not None and loop.only_after_success[follower.row]
            follower.doomed |= bool(choosy and not well)
            if follower.ends_left == 0:
                self.send(follower, time if follower.doomed else time + max(0 if loop.at_once else 1, delay))

    def be_read(self, request: Request, time: int) -> None:
        """An answer is there: its user is free when it is read, at the client's rate from the first token on."""
        self.end, request.left = max(self.end, time), time
        loop, rate = self.world.closed_loop, self.world.clients.read_tokens_per_s
        rate = None if loop is not None and loop.unread is not None and loop.unread[request.row] else rate
        until = -1 if rate is None else request.first + (request.output - 1) * round(1e12 / rate)
        if until > time:
            request.reads_until = until
        else:
            self.end_in_session(request, time)
            self.free_user(request, time)

    def next_alarm(self) -> tuple:
        """Who gives up next, or has read, and when."""
        if not self.in_world:
            return NEVER, None
        alarms = [
            (self.alarm(request), request.late, request.row, place)
            for place, request in enumerate(self.requests)
            if request.sent < NEVER or request.reads_until < NEVER
        ]
        time, _, _, place = min(alarms, default=(NEVER, 0, 0, None))
        return time, None if place is None else self.requests[place]

    def alarm(self, request: Request) -> int:
        if request.reads_until < NEVER:
            return request.reads_until
        waits = request.scheduled < 0 and not request.delivered
        return min(self.client_alarm(request), request.due if waits else NEVER)

    def client_alarm(self, request: Request) -> int:
        clients, times = self.world.clients, [request.leaves]
        if clients.timeout_s is not None:
            times.append(request.sent + round(clients.timeout_s * 1e12))
        if clients.first_token_timeout_s is not None and request.first < 0:
            times.append(request.sent + round(clients.first_token_timeout_s * 1e12))
        return min(times)

    def give_up(self, request: Request, time: int) -> None:
        if request.reads_until < NEVER:
            request.reads_until = NEVER
            self.end_in_session(request, time)
            self.free_user(request, time)
            return
        status = Status.TIMED_OUT if self.client_alarm(request) <= time else Status.REJECTED_DEADLINE
        status = Status.CANCELLED if request.leaves <= time else status
        self.given_up[status] += 1
        replica = self.replicas[request.replica]
        request.sent, request.gave_up = NEVER, time
        if replica.is_served(request):
            replica.gone.append((request, status))
        else:
            replica.drop(request, status, time)

    def come_to_nothing(self, request: Request, time: int, least: int, status: Status) -> None:
        replica, first, partial = request.replica, request.first, request.produced + request.in_flight
        self.wasted += partial
        request.forget()
        clients = self.world.clients
        if request.attempts < clients.attempt_count and status != Status.CANCELLED:
            first, longest = round(clients.backoff_s * 1e12), round(clients.longest_backoff_s * 1e12)
            half = min(first * 2 ** (request.attempts - 1), longest) // 2
            lot = request.row if request.lot is None else request.lot
            drawn = scrambled(lot, request.attempts) % 65536
            self.send(request, time + max(1, least, half + half // 65536 * drawn))
            return
        request.status, request.partial = status, partial
        gave_up = status in {Status.CANCELLED, Status.TIMED_OUT}
        request.replica = replica if gave_up or status == Status.LOST else -1
        request.first = first if gave_up and first < request.gave_up else -1
        self.leave(request, time)

    # ---- replicas

    def happen(self, time: int, happening: Happening) -> None:
        if happening.door is not None:
            self.open_door(happening.door, time)
            self.release_all(time)
            self.decisions.append((time / 1e12, "door", (), happening.reason))
            return
        if happening.kind == "wait":
            self.decisions.append((time / 1e12, "wait", happening.replicas, happening.reason))
            return
        self.settle()
        change = self.slow if happening.kind == "slow" else self.become
        changed = tuple(number for number in happening.replicas if change(number, time, happening))
        if changed:
            self.decisions.append((time / 1e12, happening.kind, changed, happening.reason))
        self.settle()
        self.release_all(time)

    def settle(self) -> None:
        for number, replica in enumerate(self.replicas):
            if self.states[number] == ReplicaState.STOPPING and replica.in_flight == 0:
                self.set_state(number, max(self.since[number], replica.emptied), ReplicaState.ABSENT)

    def set_state(self, number: int, time: int, state: ReplicaState) -> None:
        self.spells.append((number, self.states[number], self.since[number], time))
        self.since[number], self.states[number] = time, state

    def become(self, number: int, time: int, happening: Happening) -> bool:
        state = BECOMES[happening.kind].get(self.states[number])
        if state is None:
            return False
        lives = self.states[number] in LIVES
        if state == ReplicaState.FAILED:
            self.replicas[number].let_go(time)
            for request in self.replicas[number].lose_all():
                self.lost += 1
                self.end_in_session(request, time)
                request.delivered = False
                self.come_to_nothing(request, time, 0, Status.LOST)
        if not lives or state == ReplicaState.FAILED:
            self.replicas[number], self.factors[number] = self.fresh(number), 1.0
        self.set_state(number, time, state)
        return True

    def slow(self, number: int, _: int, happening: Happening) -> bool:
        lives = self.states[number] in LIVES
        factor = happening.step_time_factor
        if not lives or self.factors[number] == factor:
            return False
        usual = self.physics[number].step_time
        self.factors[number] = factor
        self.replicas[number].step = replace(performance.scaled(usual, factor), request_ps=usual.request_ps)
        return True

    def state_s(self) -> list[list[float]]:
        self.settle()
        last = [(number, state, self.since[number], self.end) for number, state in enumerate(self.states)]
        spent = [[0] * len(ReplicaState) for _ in self.states]
        for number, state, since, until in self.spells + last:
            spent[number][state] += max(0, min(until, self.end) - since)
        return [[time / 1e12 for time in row] for row in spent]

    # ---- the controller

    def ask(self, time: int) -> None:
        shown = self.pools[0]
        gauges = [self.gauges(self.replicas[number]) for number in shown]
        new = (r for r in self.requests if self.last_tick < r.first <= time and r.replica in shown)
        new = sorted(new, key=lambda r: r.row)
        left = sorted(r.first - r.first_arrival for r in new)
        blocks = [physics.kv_block_count for physics in self.physics[: len(shown)]]
        free = [count - used for count, (_, _, used) in zip(blocks, gauges, strict=True)]
        view = FleetView(
            time_s=time / 1e12,
            state=np.array(self.states[: len(shown)], dtype=np.int8),
            running=np.array([running for running, _, _ in gauges], dtype=np.int32),
            waiting=np.array([waiting for _, waiting, _ in gauges], dtype=np.int32),
            kv_used_fraction=1.0 - np.array(free) / np.array(blocks),
            free_kv_tokens=np.array(free)
            // np.array([r.kv_growth_block_count or r.kv_window_block_count for r in self.physics[: len(shown)]])
            * np.array([physics.kv_block_tokens for physics in self.physics[: len(shown)]]),
            active_tokens=np.array([self.active(self.replicas[number]) for number in shown]),
            oldest_wait_s=self.oldest_wait_s(shown, time),
            arrived_count=self.entered - self.told[0],
            refused_count=self.refused - self.told[1],
            ttft_p90_s=left[math.ceil(0.9 * len(left)) - 1] / 1e12 if left else None,
            first_tokens=np.array([r.row for r in new], dtype=np.int32),
            first_token_s=np.array([r.first / 1e12 for r in new]),
        )
        self.told, self.last_tick = (self.entered, self.refused), time
        for happening in self.world.controller(view):
            self.agenda.append((round(happening.time_s * 1e12), happening))
        self.agenda.sort(key=lambda entry: entry[0])

    def oldest_wait_s(self, shown: range, time: int) -> dict[int, np.ndarray]:
        """Of requests that were never admitted; those with the front end wait for nobody yet."""
        in_lanes = self.world.lane is not None and self.world.batch is not None
        level = {r: int(r.batch) if in_lanes else r.priority for r in self.requests}
        waits = {found: np.zeros(len(shown)) for found in sorted(set(level.values()))}
        for number in shown:
            for request in self.replicas[number].waiting:
                if request.preemptions == 0:
                    wait = max(0, time - request.ready) / 1e12
                    waits[level[request]][number] = max(waits[level[request]][number], wait)
        return {found: wait for found, wait in waits.items() if wait.any()}

    # ---- what is counted

    def count_gap(self, request: Request, gap: int, end: int) -> None:
        index = min(bisect_right(GAP_BOUNDS_PS, gap) - 1, len(self.gaps) - 1)
        inside = self.peak[0] <= end < self.peak[1]
        self.gaps[index] += 1
        self.peak_gaps[index] += inside
        for name in self.classes.get(request.row, ()):
            self.class_gaps[name][0][index] += 1
            self.class_gaps[name][1][index] += inside

    def count_step(self, replica: Replica, decodes: list, prefills: list, duration: int) -> None:
        self.steps += 1
        share = 0
        if prefills:
            share = duration
            if decodes:
                self.mixed_steps += 1
                alone = replica.duration(decodes, [])
                share = (replica.duration([], prefills) + duration - alone) // 2
                share = min(share, duration - sum(self.own(replica, start) for _, start, _ in decodes))
            cached = sum(replica.attention(start, tokens, request.hit) for request, start, tokens in prefills)
            self.cached_prefix += min(share, cached)
        self.prefill += share
        self.decode += duration - share
        self.charge(replica, decodes, prefills, share, duration - share)
        self.count_work(replica, decodes, prefills, duration)

    def own(self, replica: Replica, start: int) -> int:
        """What a decoding sequence costs beside the tokens of the step."""
        step, context = replica.step, start + 1
        return step.sequence_ps + step.context_ps * context + step.window_ps * min(context, step.window_tokens)

    def charge(self, replica: Replica, decodes: list, prefills: list, prefill: int, decode: int) -> None:
        """Each pays its own part of the step; the rest goes by tokens among prefills, equally among decodes."""
        gpus = replica.physics.deployment.layout.gpu_count
        if decodes:
            rest = decode - sum(self.own(replica, start) for _, start, _ in decodes)
            each, replica.carry = divmod(rest + replica.carry, len(decodes))
            for request, start, _ in decodes:
                request.took_decode += gpus * (each + self.own(replica, start))
        attention = [replica.attention(start, tokens) for _, start, tokens in prefills]
        rest, passed, total = prefill - sum(attention), 0, sum(tokens for _, _, tokens in prefills)
        for (request, start, tokens), own in zip(prefills, attention, strict=True):
            until = passed + tokens
            request.took_prefill += gpus * (own + rest * until // total - rest * passed // total)
            request.took_cached += gpus * replica.attention(start, tokens, request.hit)
            passed = until

    def count_work(self, replica: Replica, decodes: list, prefills: list, duration: int) -> None:
        self.done[replica.number] += Counter(
            busy=duration,
            steps=1,
            prefill_steps=bool(prefills),
            prefill_tokens=sum(tokens for _, _, tokens in prefills),
            decode_tokens=len(decodes),
            contexts=sum(start + 1 for _, start, _ in decodes),
            pairs=sum(tokens * start + tokens * (tokens + 1) // 2 for _, start, tokens in prefills),
        )

    def work(self, replica: Replica, time: int) -> dict:
        """What a replica has done, and the tokens it holds for those that run."""
        done = dict(self.done[replica.number])
        to_come = max(0, replica.busy_until - time)
        # A step that waits for gpus which others have takes nothing of them yet.
        done["busy"] = done.get("busy", 0) - (to_come if replica.berth is None else min(to_come, replica.own))
        return done | {"active": self.active(replica)}

    def active(self, replica: Replica) -> int:
        """Tokens computed, or in a step that runs; decodes of a step that is held are not yet."""
        held = sum(not request.prefilling for request, _, _ in replica.held or ())
        return sum(request.computed for request in replica.running) - held

    def gauges(self, replica: Replica) -> tuple[int, int, float]:
        ending = replica.ending()
        waiting = sum(request not in ending for request in replica.waiting)
        used = replica.physics.kv_block_count - len(replica.pool.free)
        return len(replica.running), waiting, used


def requests_of(trace: Trace) -> list[Request]:
    """Requests with the shared runs on their path: the tokens each reaches to, and its name."""
    requests = []
    depth = [] if trace.prefixes is None else trace.prefixes.depth_tokens.tolist()
    for row in range(trace.request_count):
        keys = []
        node = -1 if trace.prefix_node is None else int(trace.prefix_node[row])
        while node >= 0:
            keys.append((depth[node], node))
            node = int(trace.prefixes.parent[node])
        session = None if trace.session is None or trace.session[row] < 0 else int(trace.session[row])
        lengths = int(trace.input_tokens[row]), int(trace.output_tokens[row])
        arrival = int(np.rint(trace.arrival_s[row] * 1e12))
        delivered = trace.kv_delivered is not None and bool(trace.kv_delivered[row])
        keys = [] if delivered else keys[::-1]
        priority = 0 if trace.priority is None else int(trace.priority[row])
        request = Request(row, arrival, *lengths, keys, ("own", row), session, delivered, priority)
        request.prompt_is_here = not delivered
        requests.append(request)
    return requests


def classes_of(trace: Trace, batch: np.ndarray | None) -> dict[int, list[str]]:
    """The traffic classes of each request, and its priority, or its lane where batch has one of its own."""
    bits = [0] * trace.request_count if trace.class_bits is None else trace.class_bits.tolist()
    levels = trace.priority if batch is None else np.asarray(batch).astype(int)
    ranked = [] if levels is None else levels.tolist()
    named = {
        row: [name for index, name in enumerate(trace.classes) if each >> index & 1] for row, each in enumerate(bits)
    }
    for row, priority in enumerate(ranked if len(set(ranked)) > 1 else []):
        lane = "lane batch" if priority else "lane interactive"
        named[row].append(f"priority {priority}" if batch is None else lane)
    return named
