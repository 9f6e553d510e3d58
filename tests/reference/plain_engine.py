"""A replica, slow and obvious: plain Python, one step and one block at a time. The kernel must equal it exactly.

Written from the rules of the schedulers (vLLM V1, and what SGLang and TensorRT-LLM do otherwise), not from the
kernel: blocks are objects in one free list that is also the LRU, hashes are a map from key to blocks, and outputs
are applied when a step ends. So many tokens of context as a block has take a tuple of blocks in layers that keep
everything and one in those with a window.
"""

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from tokenfleet.control import queue_turn, scrambled
from tokenfleet.domain.run import Status

NEVER = 1 << 63
FIRST_RATIO, LEAST_RATIO = Fraction(7, 10), Fraction(98, 1000)
RATIO_FALL = (FIRST_RATIO - LEAST_RATIO) / 600


@dataclass(eq=False)
class Request:
    row: int
    arrival: int
    input: int
    output: int
    keys: list  # (tokens up to the end of the shared run, name of the run), root first
    name: object
    session: int | None
    delivered: bool = False  # the KV of its prompt, but for the last token, came with it
    priority: int = 0
    ready: int = 0
    produced: int = 0
    in_flight: int = 0
    computed: int = 0
    hit: int = 0
    blocks: list = field(default_factory=list)
    fixed: list = field(default_factory=list)
    window: list = field(default_factory=list)  # tuples of blocks from place ``behind`` on
    behind: int = 0
    hashed: int = 0
    admitted: bool = False
    prefilling: bool = False
    cached: int = 0
    preemptions: int = 0
    first: int = -1
    last: int = -1
    finish: int = -1
    replica: int = -1
    status: Status = Status.FINISHED
    attempts: int = 0
    first_arrival: int = -1
    batch: bool = False
    pool: int = 0
    lot: int | None = None  # by which its waits are drawn; its row where that is not given
    ends_left: int = 1  # requests whose ends it waits for
    mark: bool = False  # no request, but something that ends when it would come
    doomed: bool = False  # what it waits for came to nothing, and only success counts
    degraded: int = 0
    tenant: int | None = None
    late: int = 0  # not by the clock; between equals, who comes later
    followers: list = field(default_factory=list)  # (request, delay)
    scheduled: int = -1  # first admission of the last attempt
    took_prefill: int = 0  # gpu-picoseconds in all attempts
    took_cached: int = 0
    took_decode: int = 0
    sent: int = NEVER  # arrival of its attempt, while a replica has it
    stays: int = NEVER  # how long its user does
    stays_tokens: int = 0
    leaves: int = NEVER
    gave_up: int = NEVER  # when its client did
    prompt_is_here: bool = True  # its prompt is computed where it is served
    partial: int = 0
    left: int = -1  # when it ended, well or not
    swapped: int = 0  # its blocks in host memory
    lost: int = 0  # computed tokens that its last preemption dropped
    computed_again: int = 0  # of which no cache had kept so many
    swaps: int = 0
    drafts: int = 0  # tokens drafted for it in the step fixed last
    ahead: int = 0  # blocks that they may need
    due: int = NEVER  # when the door refuses it if it still waits
    reads_until: int = NEVER  # its answer is there, and its client still reads

    @property
    def tokens(self) -> int:
        return self.input + self.produced

    def forget(self) -> None:
        """What the attempt got is lost."""
        self.produced = self.in_flight = self.computed = self.hit = self.hashed = self.cached = self.preemptions = 0
        self.drop_blocks()
        self.admitted = self.prefilling = False
        self.swapped = self.lost = 0
        self.first = self.last = self.finish = self.replica = self.scheduled = -1
        self.sent = NEVER
        self.name = ("own", self.row, self.attempts)

    @property
    def held(self) -> list:
        return [*self.window, *self.blocks, *self.fixed]

    def drop_blocks(self) -> None:
        self.blocks, self.fixed, self.window, self.behind = [], [], [], 0

    def block_key(self, index: int, block_tokens: int) -> object:
        """Who shares a block; a prompt is the same at each attempt, what is generated is not."""
        end = (index + 1) * block_tokens
        same = ("prompt", self.row) if end <= self.input and self.prompt_is_here else self.name
        return next(((name, index) for depth, name in self.keys if depth >= end), (same, index))


@cache
def pairs(start: int, tokens: int, hit: int | None, window_tokens: int) -> tuple[int, int]:
    """Pairs of a query and a key, counted one query at a time: all of them, and those beyond the window."""
    whole = inside = 0
    for query in range(start + 1, start + tokens + 1):
        last = query if hit is None else hit
        whole += last
        inside += max(0, last - max(0, query - window_tokens))
    return whole, inside


class Pool:
    """Blocks; the free list is the LRU, unhashed blocks in front, or ``in_turn`` as before vLLM 0.24.

    Those of a tuple are hashed and released together.
    """

    def __init__(self, count: int, block_tokens: int, caching: bool, in_turn: bool) -> None:
        self.in_turn = in_turn
        self.free = OrderedDict((block, None) for block in range(count))
        self.block_tokens, self.caching = block_tokens, caching
        self.key, self.users = [None] * count, [0] * count
        self.by_key = {}

    def take(self, count: int, each: int = 1) -> list:
        """Tuples of so many blocks each."""
        return [tuple(self.take_one() for _ in range(each)) for _ in range(count)]

    def take_one(self) -> int:
        block = self.free.popitem(last=False)[0]
        if self.key[block] is not None:
            together = next(found for found in self.by_key[self.key[block]] if block in found)
            self.by_key[self.key[block]].remove(together)
            for other in together:
                self.key[other] = None
                if other != block:
                    self.free.move_to_end(other, last=False)
        self.users[block] = 1
        return block

    def touch(self, tuples: list) -> None:
        for block in (block for together in tuples for block in together):
            if self.users[block] == 0:
                del self.free[block]
            self.users[block] += 1

    def release(self, tuples: list) -> None:
        for block in (block for together in reversed(tuples) for block in together):
            self.users[block] -= 1
            if self.users[block] == 0:
                self.free[block] = None
                if self.key[block] is None and not self.in_turn:
                    self.free.move_to_end(block, last=False)

    def hits(self, request: Request) -> list:
        found = []
        if self.caching:
            for index in range((request.tokens - 1) // self.block_tokens):
                same = self.by_key.get(request.block_key(index, self.block_tokens))
                if not same:
                    break
                found.append(same[0])
        return found

    def hash_blocks(self, request: Request, tokens: int) -> None:
        while self.caching and request.hashed < tokens // self.block_tokens:
            together, key = request.blocks[request.hashed], request.block_key(request.hashed, self.block_tokens)
            for block in together:
                self.key[block] = key
            self.by_key.setdefault(key, []).append(together)
            request.hashed += 1


class Replica:
    def __init__(self, physics, run, number, berth=None) -> None:
        self.physics, self.run, self.step, self.number = physics, run, physics.step_time, number
        self.berth = berth  # the gpus that it stands on, where others do, too
        self.held = None  # a step that is fixed, while the one before it runs on gpus that others share
        self.own = 0  # what its last step took of them
        self.busy_until = self.carry = 0
        self.engine = physics.deployment.engine
        self.growth, self.windowed = physics.kv_growth_block_count, physics.kv_window_block_count
        if self.growth == 0 and self.engine.prefix_caching and run.shares_prefixes:
            self.growth, self.windowed = self.windowed, 0  # others find the whole context
        caching = self.engine.prefix_caching and self.growth > 0
        in_turn = self.engine.name in {"vllm-0.11", "vllm-0.16"} and (self.growth, self.windowed) == (1, 0)
        self.pool = Pool(physics.kv_block_count, physics.kv_block_tokens, caching, in_turn)
        self.running, self.waiting = [], deque()
        self.flying = deque()  # (end, requests that get a token, those for which tokens were drafted)
        self.clock = self.horizon = 0
        self.event = NEVER
        self.in_flight = self.batch_in_flight = 0
        self.rules = self.engine.name.split("-", 1)[0]
        self.by_priority = self.engine.scheduling == "priority" or run.world.lane is not None
        self.front_end = 0  # when a serial front end is free again
        speculation = self.engine.speculation
        self.acceptance = 0.0 if speculation is None else speculation.acceptance_fraction
        self.drafted = 0 if speculation is None else speculation.draft_token_count
        self.lag = self.engine.async_scheduling and speculation is None
        self.ahead = 0  # free blocks that the drafts of the step being fixed may need
        self.decodes_due = 0  # SGLang: rounds of decode before anybody prefills again
        self.ratio = FIRST_RATIO  # SGLang: share of the declared output that a decode is expected to need
        self.emptied = 0
        self.planned = []  # the step fixed last
        self.host = self.moved = 0  # blocks in host memory; moved there or back for the next step
        self.gone = []  # (request, status): it runs, or did, and its client has given up
        self.heard = set()  # SGLang: those of them that it knows of
        self.full = False  # SGLang: nobody is admitted until somebody has left
        self.looked, self.unseen = 0, self.engine.receive_interval_count  # SGLang: for new requests; rounds since then
        self.looks = False

    # ---- one step

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.physics.kv_block_tokens)

    def behind(self, tokens: int) -> int:
        """Blocks in front that a window needs no more after so many tokens."""
        seen = self.physics.kv_window_tokens - 1
        return max(0, tokens - seen) // self.physics.kv_block_tokens

    def most_blocks(self, start: int, end: int) -> int:
        """On the way from ``start`` computed tokens to ``end``, while there is room for what may be in flight."""
        in_flight = self.engine.max_batched_tokens * (1 + self.lag)
        most = self.blocks_for(self.physics.kv_window_tokens - 1 + in_flight) + 1
        inside = min(self.blocks_for(end) - self.behind(start), most) if self.windowed else 0
        return self.growth * self.blocks_for(end) + self.windowed * inside

    def give_back(self, request: Request) -> None:
        """What lies behind the window of tokens that are computed for sure."""
        computed = request.computed
        if self.flying and self.rules != "sglang":
            computed -= sum(tokens for other, _, tokens in self.planned if other is request)
        behind = self.behind(computed)
        if self.windowed and behind > request.behind:
            self.pool.release(request.window[: behind - request.behind])
            request.window, request.behind = request.window[behind - request.behind :], behind

    def take(self, request: Request, tokens: int) -> None:
        """Blocks for so many tokens in all."""
        count = self.blocks_for(tokens)
        request.blocks += self.pool.take(count - len(request.blocks), self.growth)
        if self.windowed:
            request.window += self.pool.take(count - request.behind - len(request.window), self.windowed)

    def preempt(self, request: Request, served: int = 0) -> None:
        self.running.remove(request)
        self.pool.release(request.held)
        self.swap_out(request)
        request.lost = 0 if request.swapped else request.computed - served
        request.swaps += request.swapped > 0
        self.count(preemptions=1, swaps=request.swapped > 0, swapped_blocks=request.swapped)
        request.drop_blocks()
        request.hashed = request.computed = 0
        request.preemptions += 1
        self.full = False
        if self.rules == "sglang":
            self.waiting.append(request)
        else:
            self.waiting.appendleft(request)

    def swap_out(self, request: Request) -> None:
        """Only a decode goes to host memory; what was served to it in this step is not computed."""
        decodes = not request.prefilling and request.produced + request.in_flight < request.output
        blocks = self.kept_blocks(request.tokens + request.in_flight - 1)
        if decodes and self.host + blocks <= self.physics.swap_block_count:
            request.swapped = blocks
            self.host += blocks
            self.moved += blocks

    def kept_blocks(self, tokens: int) -> int:
        count = self.blocks_for(tokens)
        return count * self.growth + (count - self.behind(tokens)) * self.windowed

    def urgency(self, request: Request) -> tuple:
        """Smaller first."""
        lane = self.run.world.lane
        if lane is not None:
            patience = round(lane.patience_s * 1e6)
            turn = queue_turn(request.ready // 1_000_000, request.batch, patience)
            return turn, request.batch, request.ready, request.late, request.row
        return request.priority, request.ready, request.late, request.row

    def head(self) -> Request | None:
        """Who is admitted next, of those that have reached the scheduler."""
        if not self.by_priority:
            return self.waiting[0] if self.waiting and self.waiting[0].ready <= self.clock else None
        return min((r for r in self.waiting if r.ready <= self.clock), key=self.urgency, default=None)

    def longest_chunk(self) -> float:
        """What a prompt gets of one step at most; since vLLM 0.32 no limit holds for one that is alone."""
        limit = self.engine.long_prefill_tokens
        known = len(self.running) + sum(request.ready <= self.clock for request in self.waiting)
        version = self.engine.name.partition("-")[2]
        if limit is None or (known <= 1 and version not in {"0.11", "0.16", "0.24"}):
            return math.inf
        return limit

    def schedule(self) -> list:
        """[(request, start, tokens)] of the next step, in the order of the scheduler."""
        if self.rules == "sglang":
            return self.prefill_round() or self.decode_round()
        if self.run.world.lane is not None:
            self.give_way()
        budget, planned, preempted = self.engine.max_batched_tokens, [], False
        longest = self.longest_chunk()
        self.ahead = 0
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = min(request.tokens + request.in_flight - request.computed, longest, budget)
            if tokens == 0 or (request.in_flight and request.produced + request.in_flight >= request.output):
                index += 1
                continue
            self.give_back(request)
            need = self.need(request, request.computed + tokens)
            drafts = 0 if request.prefilling else min(self.drafted, budget - 1)
            ahead = self.ahead_of(request, drafts)
            while need + ahead + self.ahead > len(self.pool.free):
                victim = max(self.running, key=self.urgency) if self.by_priority else self.running[-1]
                index -= self.running.index(victim) < index
                served = sum(entry[2] for entry in planned if entry[0] is victim)
                budget += served + (victim.drafts if served else 0)
                self.ahead -= victim.ahead if served else 0
                planned = [entry for entry in planned if entry[0] is not victim]
                self.preempt(victim, served)
                preempted = True
                if victim is request:
                    return planned
            request.drafts, request.ahead = drafts, ahead
            self.compute(request, tokens, planned)
            self.ahead += ahead
            budget -= tokens + drafts
            index += 1
        while not preempted and budget > 0 and len(self.running) < self.engine.max_sequence_count:
            request = self.head()
            tokens = self.admit(request, longest, budget) if request else 0
            if tokens == 0:
                break
            self.waiting.remove(request)
            self.running.append(request)
            request.drafts = 0 if request.prefilling else self.drafted
            request.ahead = self.ahead_of(request, request.drafts)
            self.ahead += request.ahead
            budget -= request.drafts
            self.compute(request, tokens, planned)
            budget -= tokens
        return planned

    def ahead_of(self, request: Request, drafts: int) -> int:
        """Blocks that the drafts of a decode need behind the token of its own."""
        reach = request.computed + 1
        return (self.growth + self.windowed) * (self.blocks_for(reach + drafts) - self.blocks_for(reach))

    def need(self, request: Request, tokens: int) -> int:
        """Blocks to take until it has those of so many tokens."""
        return (self.growth + self.windowed) * (self.blocks_for(tokens) - len(request.blocks))

    def give_way(self) -> None:
        """Batch sequences make room for interactive requests that have waited for long enough."""
        slots = self.engine.max_sequence_count - len(self.running)
        blocks = len(self.pool.free) - int(self.engine.watermark_fraction * (self.physics.kv_block_count + 1))
        budget, wait = self.engine.max_batched_tokens, round(self.run.world.lane.wait_s * 1e12)
        due = [r for r in self.waiting if not r.batch and r.ready + wait <= self.clock]
        for request in sorted(due, key=self.urgency):
            if budget <= 0:
                return
            slots -= 1
            blocks -= self.most_blocks(0, request.tokens) + self.physics.kv_fixed_block_count
            budget -= request.tokens
            while slots < 0 or blocks < 0:
                goes_on = [r for r in self.running if r not in self.ending()]
                victims = [r for r in goes_on if r.batch and self.urgency(r)[0] > self.urgency(request)[0]]
                if not victims:
                    return
                free = len(self.pool.free)
                self.preempt(max(victims, key=self.urgency))
                slots += 1
                blocks += len(self.pool.free) - free

    def admit(self, request: Request, longest: float, budget: int) -> int:
        delivered = request.delivered and not request.admitted
        hits = [] if delivered else self.pool.hits(request)
        hit = len(hits) * self.physics.kv_block_tokens
        start = request.tokens + request.in_flight - 1 if request.swapped else hit
        tokens = min(request.tokens - start, longest)
        if self.lacks_tokens(delivered, tokens, budget):
            return 0
        tokens = min(tokens, budget)
        if not self.finds_room(request, hits, start, tokens):
            return 0
        self.pool.touch(hits)
        again = max(0, request.lost - hit)
        request.computed_again += again
        request.lost = 0
        self.count(recomputed=again)
        request.scheduled = self.clock if request.scheduled < 0 else request.scheduled
        request.blocks, request.hashed = hits, len(hits)
        request.fixed = self.pool.take(self.physics.kv_fixed_block_count)
        request.computed, request.hit = request.input - 1 if delivered else start, hit
        if request.swapped:
            self.host -= request.swapped
            back = request.swapped - len(hits) * self.growth
            self.moved += back
            self.count(swapped_blocks=back)
            request.swapped = 0
        request.behind = self.behind(request.computed) if self.windowed else 0
        self.take(request, request.computed)
        if delivered:
            self.pool.hash_blocks(request, request.computed)
            request.admitted = True
            return 1
        if not request.admitted:
            request.cached = hit
        request.admitted = request.prefilling = True
        return tokens

    def finds_room(self, request: Request, hits: list, start: int, tokens: int) -> bool:
        delivered, hit = request.delivered and not request.admitted, len(hits) * self.physics.kv_block_tokens
        found = len(hits) * self.growth
        unused = sum(self.pool.users[block] == 0 for together in hits for block in together)
        if self.rules == "sglang":
            left = min(request.output - request.produced, 4096)
            known = self.most_blocks(hit, request.tokens + (left if self.windowed else 0))
            need = known - found + unused + self.physics.kv_fixed_block_count + 1
            rest = (len(self.pool.free) - need) * self.physics.kv_block_tokens - (0 if self.windowed else left)
            if rest <= sum(self.expected(other) for other in self.running) * max(self.growth, 1):
                self.full = True
                return False
        else:
            whole = self.engine.full_prompt_gate or delivered or request.swapped
            reach = request.tokens if whole else hit + tokens
            reach += self.drafted if delivered else 0
            need = self.most_blocks(request.tokens - 1 if delivered else start, reach) - found + self.ahead
            if self.rules == "trtllm":
                need = self.declared_blocks(request) - found + self.promised()
            need += unused + self.physics.kv_fixed_block_count
            if self.running:
                need += int(self.engine.watermark_fraction * (self.physics.kv_block_count + 1))
            if need > len(self.pool.free):
                return False
        return True

    def lacks_tokens(self, delivered: bool, tokens: int, budget: int) -> bool:
        if delivered:
            return self.rules != "sglang" and budget < 1 + self.drafted
        return not self.engine.chunked_prefill and tokens > budget

    def promised(self) -> int:
        """TensorRT-LLM: blocks that the running requests have still to take, up to their last token."""
        held = (len(request.blocks) * self.growth + len(request.window) * self.windowed for request in self.running)
        return sum(map(self.declared_blocks, self.running)) - sum(held)

    def declared_blocks(self, request: Request) -> int:
        return self.most_blocks(0, request.input + request.output + self.drafted)

    # ---- SGLang

    def expected(self, request: Request) -> Fraction | int:
        """Output still to come of a running request: all of it in the round of its prefill, else by the ratio."""
        left = min(request.output - request.produced - request.in_flight, 4096)
        fresh = request.produced + request.in_flight == 0
        return left if request.prefilling or fresh else left * self.ratio

    def prefill_round(self) -> list:
        budget, planned = self.engine.max_batched_tokens, []
        decodes = any(not r.prefilling and r.produced + r.in_flight < r.output for r in self.running)
        if self.decodes_due > 0 and decodes:
            return []
        self.decodes_due = self.ahead = 0
        partial = [request for request in self.running if request.prefilling]
        for request in partial:
            tokens = min(request.tokens - request.computed, budget)
            self.compute(request, tokens, planned)
            budget -= tokens
        while (partial or not self.full) and budget > 0 and len(self.running) < self.engine.max_sequence_count:
            if not self.waiting or self.waiting[0].ready > self.looked:
                break
            tokens = self.admit(self.waiting[0], math.inf, budget)
            if tokens == 0:
                break
            self.running.append(self.waiting.popleft())
            if self.running[-1].prefilling:
                self.compute(self.running[-1], tokens, planned)
                budget -= tokens
        for request, _, _ in planned:
            self.pool.hash_blocks(request, request.computed)
        if planned:
            self.decodes_due = self.engine.prefill_decode_interval_count
            self.unseen = self.engine.receive_interval_count
        return planned

    def decode_round(self) -> list:
        planned, retracted = [], False
        while True:
            left = [request for request in self.running if request.produced + request.in_flight < request.output]
            decodes = [request for request in left if not request.prefilling]
            for request in decodes:
                self.give_back(request)
            need = sum(self.need(request, request.computed + 1 + self.drafted) for request in decodes)
            if need <= len(self.pool.free):
                break
            order = [(-(r.produced + r.in_flight), r.input, place) for place, r in enumerate(decodes)]
            self.preempt(decodes[order.index(max(order))])
            retracted = True
        if retracted:
            shown = sum(request.produced + request.in_flight + 20 for request in decodes)
            share = Fraction(shown, sum(request.output for request in decodes) + 1)
            self.ratio = min(Fraction(1), Fraction(int(share * 3_000_000), 3_000_000))
        elif decodes:
            self.ratio = max(LEAST_RATIO, self.ratio - RATIO_FALL)
        if decodes:
            self.decodes_due = max(0, self.decodes_due - 1)
            self.unseen += 1
        for request in decodes:
            request.drafts = self.drafted
            self.compute(request, 1, planned)
        return planned

    def compute(self, request: Request, tokens: int, planned: list) -> None:
        self.give_back(request)
        self.take(request, request.computed + tokens)
        if self.rules != "sglang" or (not request.prefilling and request.produced + request.in_flight == 0):
            self.pool.hash_blocks(request, min(request.computed + tokens, request.tokens))
        planned.append((request, request.computed, tokens))
        request.computed += tokens

    # ---- time

    def attention(self, start: int, tokens: int, hit: int | None = None) -> int:
        """Of a chunk: each query to every key up to its own, those among the first ``hit`` only if told so."""
        whole, inside = pairs(start, tokens, hit, self.step.window_tokens)
        return self.step.pair_ps * whole + self.step.window_pair_ps * inside

    def count(self, **counted: int) -> None:
        self.run.done[self.number] += Counter(counted)

    def duration(self, decodes: list, prefills: list) -> int:
        step = self.step
        contexts = [request_start + 1 for _, request_start, _ in decodes]
        tokens = sum(1 + request.drafts for request, _, _ in decodes) + sum(tokens for _, _, tokens in prefills)
        base = int(step.token_ps[tokens])
        base += int(step.draft_ps[len(decodes)]) if self.drafted and step.draft_ps is not None else 0
        base += step.sequence_ps * len(decodes) + step.context_ps * sum(contexts)
        base += step.window_ps * sum(min(context, step.window_tokens) for context in contexts)
        base += sum(self.attention(start, tokens) for _, start, tokens in prefills)
        if not prefills:
            return base
        square, floor = float(base) * float(base), float(step.eager_ps) * float(step.eager_ps)
        return int(math.sqrt(math.sqrt(square * square + floor * floor)) + 0.5)

    def boundary(self) -> None:
        if self.held is not None:
            planned, self.held = self.held, None
            self.launch(planned)
            return
        self.looks = self.unseen >= self.engine.receive_interval_count
        if self.looks:
            self.looked, self.unseen = self.clock, 0
        self.hear()
        planned = self.schedule()
        if not planned:
            self.unseen = self.engine.receive_interval_count
        if planned and self.berth is not None and self.horizon > self.clock:
            self.held, self.event = planned, self.horizon
        elif planned:
            self.launch(planned)
        elif self.flying:
            self.clock = self.event = self.horizon
        elif self.running:
            self.event = self.clock  # everybody behind one that preempted itself: schedule again
        elif self.waiting:
            self.ratio = FIRST_RATIO
            unseen = self.rules == "sglang" and self.looked < self.waiting[0].ready <= self.clock
            assert unseen or self.waiting[0].ready > self.clock, "a request that fits alone must be admitted"
            self.event = max(self.clock, self.waiting[0].ready)
            self.clock = self.horizon = self.event
        else:
            self.ratio = FIRST_RATIO
            self.event = NEVER

    def hear(self) -> None:
        """What has ended by now, and who has given up."""
        if self.rules != "sglang":
            self.let_go(self.clock)
        for end, _, drafting in self.flying:
            for request in drafting if end <= self.clock else ():
                self.keep_drafts(request)
        if self.rules == "sglang":
            self.let_go_with_a_token()
        while self.flying and self.flying[0][0] <= self.clock:
            end, yields, _ = self.flying.popleft()
            self.apply(end, yields)

    def launch(self, planned: list) -> None:
        decodes = [entry for entry in planned if not entry[0].prefilling]
        prefills = [entry for entry in planned if entry[0].prefilling]
        duration = self.duration(decodes, prefills) + self.moved * self.physics.swap_block_ps
        self.moved = 0
        self.planned = planned
        self.run.count_step(self, decodes, prefills, duration)
        yields = []
        for request, _, _ in planned:
            if request.computed == request.tokens + request.in_flight:
                request.prefilling = False
                request.in_flight += request.output > 0
                yields.append(request)
        self.own = duration
        start, begin = self.horizon, self.horizon
        if self.berth is not None:
            begin = max(begin, self.run.free[self.berth])
            self.run.free[self.berth] = begin + duration
        self.horizon = begin + duration
        self.busy_until = self.horizon
        drafting = [request for request, _, _ in decodes] if self.drafted else []
        self.flying.append((self.horizon, yields, drafting))
        self.clock = self.event = start if self.lag else self.horizon

    def keep_drafts(self, request: Request) -> None:
        """The step has ended: how much of what was drafted is right, as far as it is wanted."""
        drawn = scrambled(scrambled(request.row, request.computed), request.computed)
        kept = 0
        while kept < request.drafts and drawn < round(self.acceptance ** (kept + 1) * 2**31):
            kept += 1
        kept = min(kept, request.output - request.produced - 1)
        self.take(request, request.computed + kept)
        request.computed += kept
        request.produced += kept
        self.run.done[self.number]["kept_draft_tokens"] += kept

    def apply(self, end: int, yields: list) -> None:
        for request in yields:
            if request.output > 0:
                request.in_flight -= 1
                request.produced += 1
                if request.first < 0:
                    request.first = end
                else:
                    self.run.count_gap(request, end - request.last, end)
                request.last = end
                if request.produced == request.stays_tokens:
                    request.leaves = min(request.leaves, end + 1)
                if request in self.running and self.rules != "sglang":
                    self.pool.hash_blocks(request, request.computed - request.in_flight)
            if request.produced >= request.output:
                request.finish = end
                request.sent = NEVER
                self.in_flight -= 1
                self.batch_in_flight -= request.batch
                self.full = False
                self.emptied = end
                if request in self.running:
                    self.pool.hash_blocks(request, request.computed)
                self.pool.release(request.held)
                request.drop_blocks()
                (self.running if request in self.running else self.waiting).remove(request)
                self.run.be_read(request, end)
                self.run.release_next(request.pool, end)

    def is_served(self, request: Request) -> bool:
        """Whether it runs, or was preempted with its last step in flight."""
        return request in self.running or request in self.ending()

    def ending(self) -> set[Request]:
        """Those whose last step is in flight, of prompts that generate nothing too."""
        return {r for _, yields, _ in self.flying for r in yields if r.produced + r.in_flight >= r.output}

    def let_go(self, time: int) -> None:
        for request, status in self.gone:
            self.drop(request, status, time)
        self.gone, self.heard = [], set()

    def let_go_with_a_token(self) -> None:
        """SGLang frees a request with the first token it yields after SGLang heard that its client is gone."""
        spoken = {request for end, yields, _ in self.flying for request in yields if end <= self.clock}
        for request, status in list(self.gone):
            speaks = request in spoken and request in self.running
            ends = speaks and request.produced + 1 >= request.output
            is_prompt = self.looks and request.prefilling and request not in self.heard
            if ends or is_prompt or (speaks and request in self.heard):
                self.drop(request, status, self.clock)
                self.gone.remove((request, status))
                self.heard.discard(request)
            elif self.looks:
                self.heard.add(request)

    def drop(self, request: Request, status: Status, time: int) -> None:
        """The client of a request has given up, or the door has. What was fixed counts as if it had been done."""
        for end, yields, drafting in self.flying:
            if request in yields:
                self.count_gap(request, end)
                yields.remove(request)
            if request in drafting:
                drafting.remove(request)
        if request in self.running:
            self.full = False
            if self.rules == "sglang":
                self.pool.hash_blocks(request, request.computed)
        self.pool.release(request.held)
        (self.running if request in self.running else self.waiting).remove(request)
        self.host -= request.swapped
        self.in_flight -= 1
        self.emptied = time
        self.batch_in_flight -= request.batch
        self.run.end_in_session(request, time)
        least_s = self.run.world.admission.retry_after_s if status == Status.REJECTED_DEADLINE else 0.0
        self.run.come_to_nothing(request, time, round(least_s * 1e12), status)
        self.run.release_next(request.pool, time)

    def count_gap(self, request: Request, end: int) -> None:
        if request.output > 0:
            if request.last >= 0:
                self.run.count_gap(request, end - request.last, end)
            request.last = end

    def lose_all(self) -> list:
        """The replica fails. What was fixed counts as if it had been done."""
        held = {id(r): r for _, yields, _ in self.flying for r in yields}
        held |= {id(r): r for r in [*self.running, *self.waiting]}
        for end, yields, _ in self.flying:
            for request in yields:
                self.count_gap(request, end)
        return list(held.values())
