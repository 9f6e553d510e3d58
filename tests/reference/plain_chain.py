"""Several pools at once, slow and obvious: one clock for all of them, one event at a time.

Where two things happen at one time, an earlier stage comes before a later one, and an arrival before a boundary.
"""

import heapq
from collections import defaultdict

import numpy as np

from reference.plain_engine import NEVER, Request
from reference.plain_fleet import PlainRun
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Pools, Transfer, Wait
from tokenfleet.domain.trace import Trace


class PlainPool(PlainRun):
    """A pool that is told when to move."""

    def __init__(self, fleet, peak_window_s) -> None:
        nobody = Trace(arrival_s=np.zeros(0), input_tokens=np.zeros(0, np.int32), output_tokens=np.zeros(0, np.int32))
        super().__init__(nobody, fleet, peak_window_s)
        self.running = []

    @property
    def event(self) -> int:
        return min(replica.event for replica in self.replicas)

    def step(self) -> list[Request]:
        """One boundary; who ended in it."""
        min(self.replicas, key=lambda replica: replica.event).boundary()
        ended = [request for request in self.running if request.finish >= 0]
        self.running = [request for request in self.running if request.finish < 0]
        return ended


class PlainChain:
    def __init__(self, trace: Trace, pools: Pools, peak_window_s) -> None:
        self.trace, self.stages = trace, pools.stages
        self.pools = {
            stage.pool: PlainPool(pools.fleets[stage.pool], peak_window_s)
            for stage in pools.stages
            if isinstance(stage, Call)
        }
        count = trace.request_count
        self.links = defaultdict(int)  # when the link of a replica is free
        self.sender = [None] * count
        self.open = [0] * count  # calls side by side that have not ended
        self.first, self.last, self.finish = [-1] * count, [-1] * count, [-1] * count
        self.preemptions = [0] * count
        self.refused = [False] * count
        self.bridges = []  # (gap, end)
        self.heap = []  # (time, stage, row): a request comes to a stage
        for row in range(count):
            self.heap.append((int(np.rint(trace.arrival_s[row] * 1e12)), 0, row))
        heapq.heapify(self.heap)
        self.play()

    def play(self) -> None:
        numbered = [(index, stage.pool) for index, stage in enumerate(self.stages) if isinstance(stage, Call)]
        while True:
            boundary = min((self.pools[name].event, index, 1, name) for index, name in numbered)
            coming = (*self.heap[0][:2], 0) if self.heap else (NEVER, 0, 0)
            if min(boundary[0], coming[0]) == NEVER:
                return
            if coming < boundary[:3]:
                self.come(*heapq.heappop(self.heap))
            else:
                for request in sorted(self.pools[boundary[3]].step(), key=lambda request: request.row):
                    self.answered(request, boundary[1])

    def come(self, time: int, index: int, row: int) -> None:
        if index == len(self.stages):
            self.finish[row] = time
            return
        stage = self.stages[index]
        if not stage.takes[row]:
            heapq.heappush(self.heap, (time, index + 1, row))
        elif isinstance(stage, Wait):
            heapq.heappush(self.heap, (time + round(float(stage.duration_s[row]) * 1e12), index + 1, row))
        elif isinstance(stage, Transfer):
            link = self.sender[row]
            self.links[link] = max(self.links[link], time) + round(float(stage.duration_s[row]) * 1e12)
            heapq.heappush(self.heap, (self.links[link] + round(stage.latency_s * 1e12), index + 1, row))
        else:
            self.call(time, index, row)

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
            )
            pool.arrive(request)
            if request.status != Status.FINISHED:
                self.refused[row] = True
            else:
                pool.running.append(request)
            self.sender[row] = (index, request.replica)

    def answered(self, request: Request, index: int) -> None:
        row = request.row
        self.preemptions[row] += request.preemptions
        if self.stages[index].is_seen and request.first >= 0:
            if self.last[row] >= 0:
                self.bridges.append((request.first - self.last[row], request.first))
            else:
                self.first[row] = request.first
            self.last[row] = request.finish
        self.open[row] -= 1
        if not self.open[row] and not self.refused[row]:
            heapq.heappush(self.heap, (request.finish, index + 1, row))
