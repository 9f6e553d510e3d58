"""Several pools at once, slow and obvious: one clock for all of them, one event at a time.

Where two things happen at one time, an earlier stage comes before a later one, and an arrival before a boundary; then
doors move. Who is free at one moment takes the next in line in the order of the requests.
"""

import heapq
import math
from collections import defaultdict, deque

import numpy as np

from reference.plain_engine import NEVER, Request
from reference.plain_fleet import PlainRun, classes_of
from tokenfleet import control
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Gate, Pools, Transfer, Wait
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import NO_CAP, ClosedLoop, FleetView, ReplicaState


class PlainPool(PlainRun):
    """A pool that is told when to move."""

    def __init__(self, fleet, peak_window_s, world) -> None:
        nobody = Trace(arrival_s=np.zeros(0), input_tokens=np.zeros(0, np.int32), output_tokens=np.zeros(0, np.int32))
        super().__init__(nobody, fleet, peak_window_s, world=world)
        self.running, self.all = [], []
        self.requests = self.all  # of which some may be refused at their deadline

    @property
    def event(self) -> int:
        return min(replica.event for replica in self.replicas)

    def step(self) -> None:
        """One boundary."""
        min(self.replicas, key=lambda replica: replica.event).boundary()

    def again(self) -> tuple[int, Request | None]:
        """Who comes back first, or from the lane, and when."""
        return (self.late[0][0], self.late[0][2]) if self.late else (NEVER, None)

    def over(self) -> list[Request]:
        """Those that have ended since anybody asked, well or not."""
        ended = [request for request in self.running if request.finish >= 0 or request.status != Status.FINISHED]
        self.running = [request for request in self.running if request not in ended]
        return sorted(ended, key=lambda request: request.row)


class PlainGate:
    """A door, who has passed it, and who watches it."""

    def __init__(self, gate: Gate, trace: Trace) -> None:
        self.gate, self.trace, self.door, self.controller = gate, trace, gate.door, gate.controllers()
        self.attempts = [0] * trace.request_count
        self.first = [-1] * trace.request_count
        self.arrived = self.refused = self.refused_in_all = 0
        self.sessions = defaultdict(lambda: [0, None])  # requests in flight, and the end of the last one
        self.buckets = {tenant: [gate.door.quota_burst_tokens * 1_000_000, 0] for tenant in range(len(trace.tenants))}
        self.inside = set()

    def key(self, row: int) -> object:
        session = self.trace.session
        return ("alone", row) if session is None or session[row] < 0 else int(session[row])

    def is_open(self, key: object, now: int) -> bool:
        in_flight, last = self.sessions[key]
        return in_flight > 0 or (last is not None and last + round(self.gate.session_idle_s * 1e12) > now)

    def knock(self, row: int, now: int) -> Status | None:
        door, output = self.door, int(self.trace.output_tokens[row])
        needed = int(self.trace.input_tokens[row]) + output
        bucket = self.bucket(row, now)
        if self.gate.batch is not None and self.gate.batch[row] and not door.batch_is_open:
            return Status.REJECTED_BATCH_SHED
        if bucket is not None and needed > max(bucket[0] // 1_000_000, 0):
            return Status.REJECTED_QUOTA_SPENT
        count = sum(self.is_open(key, now) for key in list(self.sessions))
        if not self.is_open(self.key(row), now) and count >= door.session_limit_count:
            return Status.REJECTED_NEW_SESSION
        if self.to_smaller(row):
            return None
        if needed > door.context_cap_tokens:
            return Status.REJECTED_CONTEXT_CAP
        return Status.REJECTED_OUTPUT_CAP if output > door.output_cap_tokens else None

    def to_smaller(self, row: int) -> bool:
        batch = self.gate.batch is not None and self.gate.batch[row]
        short = self.trace.input_tokens[row] <= self.door.smaller_input_tokens
        brief = self.trace.output_tokens[row] <= self.door.smaller_output_tokens
        return bool(self.gate.smaller is not None and self.gate.smaller[row] and not batch and short and brief)

    def bucket(self, row: int, now: int) -> list | None:
        tenant = -1 if self.trace.tenant is None else int(self.trace.tenant[row])
        if tenant < 0 or self.door.quota_tokens_per_s == NO_CAP:
            return None
        bucket, full = self.buckets[tenant], self.door.quota_burst_tokens * 1_000_000
        bucket[:] = [
            min(bucket[0] + (now // 1_000_000 - bucket[1]) * self.door.quota_tokens_per_s, full),
            now // 1_000_000,
        ]
        return bucket

    def wait(self, row: int) -> int:
        clients, attempt = self.gate.clients, self.attempts[row]
        half = min(round(clients.backoff_s * 1e12) * 2 ** (attempt - 1), round(clients.longest_backoff_s * 1e12)) // 2
        drawn = half + half // 65536 * (control.scrambled(row, attempt) % 65536)
        return max(1, round(self.gate.retry_after_s * 1e12), drawn)

    def let_in(self, row: int, now: int) -> None:
        bucket = self.bucket(row, now)
        if bucket is not None:
            bucket[0] -= (int(self.trace.input_tokens[row]) + int(self.trace.output_tokens[row])) * 1_000_000
        self.sessions[self.key(row)][0] += 1
        self.inside.add(row)

    def let_out(self, row: int, now: int) -> None:
        if row in self.inside:
            self.inside.remove(row)
            session = self.sessions[self.key(row)]
            session[:] = [session[0] - 1, None if isinstance(self.key(row), tuple) else now]

    def turn(self, door, now: int) -> None:
        quota = (door.quota_tokens_per_s, door.quota_burst_tokens)
        if quota != (self.door.quota_tokens_per_s, self.door.quota_burst_tokens):
            self.buckets = {tenant: [quota[1] * 1_000_000, now // 1_000_000] for tenant in self.buckets}
        self.door = door


class PlainChain:
    def __init__(
        self, trace: Trace, pools: Pools, peak_window_s, worlds=None, closed_loop: ClosedLoop | None = None, reads=None
    ) -> None:
        self.reads = reads  # tokens that a user reads in a second
        self.trace, self.stages = trace, pools.stages
        self.calls = {stage.pool: (index, stage) for index, stage in enumerate(pools.stages) if isinstance(stage, Call)}
        self.pools = {
            name: PlainPool(pools.fleets[name], peak_window_s, None if worlds is None else worlds(name))
            for name in self.calls
        }
        for pool in self.pools.values():
            in_lanes = pool.world.lane is not None and trace.priority is not None
            pool.classes = classes_of(trace, trace.priority > 0 if in_lanes else None)
        free = defaultdict(int)  # when the gpus that several share are
        for pool in self.pools.values():
            pool.free = free
        count = trace.request_count
        self.lots = self.numbered(has_marks=closed_loop is not None)
        self.gates = {stage.name: PlainGate(stage, trace) for stage in pools.stages if isinstance(stage, Gate)}
        self.tick = min((round(gate.gate.tick_s * 1e12) for gate in self.gates.values()), default=NEVER)
        self.ticks, self.ended_count = 1, 0
        self.links = defaultdict(int)  # when the link of a replica is free
        self.sender = [None] * count
        self.open = [0] * count  # calls side by side that have not ended
        self.arrival = [-1] * count
        self.first, self.last, self.finish = [-1] * count, [-1] * count, [-1] * count
        self.preemptions = [0] * count
        self.answer = [None] * count  # the smaller answer to which a gate has sent it
        self.status = [Status.FINISHED] * count
        self.bridges = []  # (gap, end, row)
        self.heap = []  # (time, stage, row): a request comes to a stage
        self.followers, self.line, self.free = defaultdict(list), deque(), []
        for row in range(count):
            after = -1 if closed_loop is None else int(closed_loop.after[row])
            delay = 0 if closed_loop is None else max(1, round(float(closed_loop.delay_s[row]) * 1e12))
            if after >= 0:
                self.followers[after].append((row, delay))
            elif after == -2:
                self.line.append((row, delay))
            else:
                self.heap.append((int(np.rint(trace.arrival_s[row] * 1e12)), 0, row))
        heapq.heapify(self.heap)
        self.play()

    def numbered(self, *, has_marks: bool) -> dict[tuple[int, int], int]:
        """The place of the first call of each request to each pool, in the order in which requests come to one."""
        waits, first, calls = [0.0] * self.trace.request_count, {}, defaultdict(list)
        for index, stage in enumerate(self.stages):
            for row in np.flatnonzero(stage.takes).tolist():
                if isinstance(stage, Wait):
                    waits[row] += float(stage.duration_s[row])
                elif isinstance(stage, Call):
                    first.setdefault(row, float(self.trace.arrival_s[row]) + waits[row])
                    calls[row].append((index, stage.call_count))
        lots, place = {}, 0
        for row in range(len(waits)) if has_marks else sorted(first, key=lambda row: (first[row], row)):
            place += has_marks
            for index, count in calls[row]:
                lots[row, index], place = place, place + count
            place += has_marks
        return lots

    def play(self) -> None:
        numbered = [(index, name) for name, (index, _) in self.calls.items()]
        while True:
            boundary = min((self.pools[name].event, index, 1, name) for index, name in numbered)
            alarm = min((self.pools[name].next_alarm()[0], index, 0, name) for index, name in numbered)
            again = min((self.pools[name].again()[0], index, 0, name) for index, name in numbered)
            coming = (*self.heap[0][:2], 0) if self.heap else (NEVER, 0, 0)
            now = min(boundary[0], alarm[0], again[0], coming[0])
            if self.free and min(self.free)[0] < now:
                self.go_on(min(self.free)[0])
            elif self.ticks * self.tick < now and self.ended_count < len(self.status):
                self.look(self.ticks * self.tick)
                self.ticks += 1
            elif now == NEVER:
                return
            elif coming <= min(boundary, alarm, again)[:3]:
                self.come(*heapq.heappop(self.heap))
            elif again <= min(boundary, alarm):
                pool = self.pools[again[3]]
                pool.arrive(heapq.heappop(pool.late)[2])
                self.settle(pool, now, again[1])
            elif alarm < boundary:
                pool = self.pools[alarm[3]]
                pool.give_up(pool.next_alarm()[1], now)
                self.settle(pool, now, alarm[1])
            else:
                self.pools[boundary[3]].step()
                self.settle(self.pools[boundary[3]], now, boundary[1])

    def come(self, time: int, index: int, row: int) -> None:
        if index == 0 and self.arrival[row] < 0:
            self.arrival[row] = time
        if index == len(self.stages):
            self.finish[row] = time
            self.end(row, self.is_read(row, time))
            return
        stage = self.stages[index]
        if not self.takes(stage, row):
            heapq.heappush(self.heap, (time, index + 1, row))
        elif isinstance(stage, Gate):
            self.knock(time, index, row, self.gates[stage.name])
        elif isinstance(stage, Wait):
            heapq.heappush(self.heap, (time + round(float(stage.duration_s[row]) * 1e12), index + 1, row))
        elif isinstance(stage, Transfer):
            link = self.sender[row]
            self.links[link] = max(self.links[link], time) + round(float(stage.duration_s[row]) * 1e12)
            heapq.heappush(self.heap, (self.links[link] + round(stage.latency_s * 1e12), index + 1, row))
        else:
            self.call(time, index, row)

    def is_read(self, row: int, time: int) -> int:
        """When the user has read the answer that ends now, token after token from the first one on."""
        if self.reads is None or self.first[row] < 0:
            return time
        later = max(int(self.trace.output_tokens[row]) - 1, 0) * round(1e12 / self.reads)
        return max(time, self.first[row] + later)

    def takes(self, stage, row: int) -> bool:
        if stage.answer is None or self.answer[row] is None:
            return bool(stage.takes[row])
        return stage.answer == self.answer[row] and stage.instead is not None and bool(stage.instead[row])

    def knock(self, time: int, index: int, row: int, gate: PlainGate) -> None:
        gate.attempts[row] += 1
        gate.arrived += 1
        gate.first[row] = time if gate.first[row] < 0 else gate.first[row]
        refusal = gate.knock(row, time)
        if refusal is None:
            if gate.to_smaller(row):
                self.answer[row] = gate.gate.smaller_answer
            gate.let_in(row, time)
            heapq.heappush(self.heap, (time, index + 1, row))
            return
        gate.refused += 1
        gate.refused_in_all += 1
        if gate.attempts[row] < gate.gate.clients.attempt_count:
            heapq.heappush(self.heap, (time + gate.wait(row), index, row))
        else:
            self.status[row] = refusal
            self.end(row, time)

    def call(self, time: int, index: int, row: int) -> None:
        stage, pool = self.stages[index], self.pools[self.stages[index].pool]
        self.open[row] = stage.call_count
        for number in range(stage.call_count):
            request = Request(
                row,
                time,
                int(stage.input_tokens[row]),
                int(stage.output_tokens[row]),
                [],
                ("own", row, number),
                None,
                stage.kv_delivered,
                priority=0 if self.trace.priority is None else int(self.trace.priority[row]),
                late=row * stage.call_count + number,  # calls of one moment are told apart by their order
                lot=self.lots.get((row, index), 0) + number,  # behind gates nobody draws any
                batch=pool.world.lane is not None and bool(self.trace.priority[row]),
            )
            pool.arrive(request)
            pool.all.append(request)
            pool.running.append(request)
            self.sender[row] = (index, request.replica)
        self.settle(pool, time, index)

    def settle(self, pool: PlainPool, time: int, index: int) -> None:
        """Go on with the calls to a pool that have ended."""
        for request in pool.over():
            if request.status == Status.FINISHED:
                self.answered(request, index)
                continue
            row = request.row
            self.status[row] = max(self.status[row], request.status)
            self.open[row] -= 1
            if not self.open[row]:
                self.end(row, time)

    def answered(self, request: Request, index: int) -> None:
        row = request.row
        self.preemptions[row] += request.preemptions
        if self.stages[index].is_seen and request.first >= 0:
            if self.last[row] >= 0:
                self.bridges.append((request.first - self.last[row], request.first, row))
            else:
                self.first[row] = request.first
            self.last[row] = request.finish
        self.open[row] -= 1
        if not self.open[row] and self.status[row] == Status.FINISHED:
            heapq.heappush(self.heap, (request.finish, index + 1, row))
        elif not self.open[row]:
            self.end(row, request.finish)

    # ---- what comes back

    def end(self, row: int, time: int) -> None:
        self.ended_count += 1
        for gate in self.gates.values():
            gate.let_out(row, time)
        for follower, delay in self.followers[row]:
            heapq.heappush(self.heap, (time + delay, 0, follower))
        if not self.followers[row]:
            self.free.append((time, row))

    def go_on(self, time: int) -> None:
        """All that ended at one moment are known: those who are free then take the next in line."""
        for _ in [each for each in self.free if each[0] == time]:
            if self.line:
                row, delay = self.line.popleft()
                heapq.heappush(self.heap, (time + delay, 0, row))
        self.free = [each for each in self.free if each[0] > time]

    def look(self, time: int) -> None:
        for gate in self.gates.values():
            for happening in gate.controller(self.view(gate, time)):
                assert happening.time_s == time / 1e12
                gate.turn(happening.door, time)

    def view(self, gate: PlainGate, time: int) -> FleetView:
        pools = [self.pools[name] for name in gate.gate.watched]
        replicas = [(pool, replica) for pool in pools for replica in pool.replicas]
        gauges = [pool.gauges(replica) for pool, replica in replicas]
        blocks = np.array([replica.physics.kv_block_count for _, replica in replicas])
        stretch_blocks = np.array(
            [each.physics.kv_growth_block_count or each.physics.kv_window_block_count for _, each in replicas]
        )
        block_tokens = np.array([replica.physics.kv_block_tokens for _, replica in replicas])
        free = blocks - np.array([used for _, _, used in gauges])
        firsts = []
        for name, pool in zip(gate.gate.watched, pools, strict=True):
            new = [r for r in pool.all if time - self.tick < r.first <= time]
            firsts += [(r.first, r.row) for r in sorted(new, key=lambda r: (r.arrival, r.late)) if self.heard(name, r)]
        ttft = sorted(first - gate.first[row] for first, row in firsts)
        view = FleetView(
            time_s=time / 1e12,
            state=np.full(len(replicas), int(ReplicaState.READY), dtype=np.int8),
            running=np.array([running for running, _, _ in gauges], dtype=np.int32),
            waiting=np.array([waiting for _, waiting, _ in gauges], dtype=np.int32),
            kv_used_fraction=1.0 - free / blocks,
            free_kv_tokens=free // stretch_blocks * block_tokens,
            arrived_count=gate.arrived,
            refused_count=gate.refused,
            ttft_p90_s=ttft[math.ceil(0.9 * len(ttft)) - 1] / 1e12 if ttft else None,
            first_tokens=np.array([row for _, row in firsts], dtype=np.int32),
            first_token_s=np.array([first / 1e12 for first, _ in firsts]),
        )
        gate.arrived = gate.refused = 0
        return view

    def heard(self, name: str, request: Request) -> bool:
        """Whether the user has had no token before this one, from an earlier pool."""
        index, stage = self.calls[name]
        earlier = [each for other, each in self.calls.values() if other < index and each.is_seen]
        return stage.is_seen and not any(
            self.takes(each, request.row) and each.output_tokens[request.row] for each in earlier
        )
