"""The fleet in time: one loop over arrivals and boundaries, in order of time, and the only compiled entry point.

At equal times an arrival comes before a boundary: a request that arrives exactly when a step ends joins the next
step, and the router still counts the requests that this step ends. Among boundaries the lower replica number is
first, among arrivals those by the clock.
"""

from tokenfleet.simulator.attention import has_window_pairs
from tokenfleet.simulator.blocks import growth_blocks, stretch_blocks
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.door import ADMITTED, SMALLER_MODEL, charge, refusal_status, verdict
from tokenfleet.simulator.foresight import expect_arrivals, scout
from tokenfleet.simulator.giving_up import end_attempt, generated_tokens, ring
from tokenfleet.simulator.lane import has_lane, is_batch, leave_lane, release_next, waits_in_lane
from tokenfleet.simulator.late import pop_late
from tokenfleet.simulator.layout import (
    ALARM_PS,
    ARRIVED_COUNT,
    BATCH_IN_FLIGHT,
    BLOCK_COUNT,
    BY_PRIORITY,
    CHUNKED,
    CLOCKED_COUNT,
    CONTEXT_LIMIT,
    DEGRADED,
    DEGRADED_SMALLER,
    ENTERED_COUNT,
    EVENTS_AT,
    EVICTED,
    FAIL,
    FAULT,
    FIRST_RUNNING,
    FIXED_BLOCKS,
    FRONT_END,
    GROUP,
    HALF,
    HAS_BONDS,
    IN_FLIGHT_AT,
    LATE_PS,
    LOST_COUNT,
    MAX_BATCHED_TOKENS,
    NEVER_PS,
    NO_TOKEN,
    NONE,
    NUMBER,
    ORDER_GROUP,
    ORDER_KIND,
    ORDER_REPLICA,
    PAUSED,
    PENDING,
    PLACE,
    POOL,
    POOL_WORDS,
    POOLS_AT,
    POOLS_END,
    PREFIX,
    PREFIX_CACHING,
    QUEUE_HEAD,
    READY,
    REFUSED_COUNT,
    RELEASE,
    REPLICA_COUNT,
    REPLICA_WORDS,
    REPLICAS_AT,
    REQUEST,
    REQUEST_PS,
    REQUEST_WORDS,
    REQUESTS_AT,
    RETRY_AFTER,
    RING_NEXT,
    RULES,
    RUN,
    RUNNING_NEXT,
    SCRAPE_WORDS,
    SCRAPES_AT,
    SERIAL_FRONT_END,
    SGLANG,
    SLOW,
    SMALLER_AT,
    STATE,
    STATUS_LOST,
    STATUS_NOBODY_READY,
    STATUS_QUEUE_FULL,
    STATUS_TOO_LONG,
    STEP_TOKENS,
    TOTAL_IN_FLIGHT,
    TREE_AT,
    TREE_LEAVES,
    TRTLLM,
    TURN,
    VISITS_AT,
    VLLM,
)
from tokenfleet.simulator.ledger import charge_before_change, close_accounts
from tokenfleet.simulator.memory import Memory, input_tokens, next_in_queue, output_tokens, set_produced_tokens
from tokenfleet.simulator.patience import has_given_up, patience_of, start_waiting
from tokenfleet.simulator.queues import queue_last
from tokenfleet.simulator.routing import NOBODY, choose_replica, has_server, next_replica
from tokenfleet.simulator.sessions import begin_in_session, end_in_session
from tokenfleet.simulator.stepping import cut_run, finish_run, pass_boundary, wake
from tokenfleet.simulator.urgency import queue_levels
from tokenfleet.simulator.visits import come_to_nothing, enter, leave, passes_by, pool_called, visit_of
from tokenfleet.simulator.windows import blocks_needed, has_window
from tokenfleet.simulator.work import gauge

WITHOUT_WINDOWS = {has_window: 0, has_window_pairs: 0, growth_blocks: 1, stretch_blocks: 1}
"""What these answer where no model has a window."""


@compiled
def replay_matches(memory: Memory, number: int) -> int:
    """Find the earliest event after that of one replica changed: replay its matches in a tournament, leaf to root.

    No match has a branch, which would be taken at random. At equal times the lower number wins, so the left side does.

    Returns:
        The time of that event.
    """
    tree = memory[TREE_AT]
    events = memory[EVENTS_AT]
    node = memory[TREE_LEAVES] + number
    winner = number
    winner_ps = memory[events + number]
    while node > 1:
        other = memory[tree + (node ^ 1)]
        other_ps = memory[events + other]
        winner = other if other_ps < winner_ps + (node & 1) else winner
        winner_ps = min(winner_ps, other_ps)
        node >>= 1
        memory[tree + node] = winner
    return winner_ps


@compiled
def too_long(memory: Memory, group: int, request: int) -> bool:
    """Whether a request could never be served to its end, even alone."""
    tokens = input_tokens(memory, request) + output_tokens(memory, request)
    if tokens > memory[group + CONTEXT_LIMIT]:
        return True
    computed = tokens - 1 if output_tokens(memory, request) > 0 else tokens
    rules = memory[group + RULES]
    at_once = input_tokens(memory, request) if rules == TRTLLM else computed
    if memory[group + CHUNKED] == 0 and at_once > memory[group + MAX_BATCHED_TOKENS]:
        return True
    if rules != VLLM:
        computed = tokens
    computed += memory[group + STEP_TOKENS] - 1
    blocks = blocks_needed(memory, group, 0, computed) + memory[group + FIXED_BLOCKS]
    if rules == SGLANG:
        # Its estimate asks for a page more and for less than all; not quite a page is lost to rounding.
        blocks += 2 * stretch_blocks(memory, group)
    return blocks > memory[group + BLOCK_COUNT]


@compiled_apart
def turn_away(memory: Memory, request: int, status: int) -> None:
    """The door is closed to a request, or no replica takes it."""
    memory[pool_called(memory, request) + REFUSED_COUNT] += 1
    come_to_nothing(memory, request, memory[request + READY], memory[RETRY_AFTER], HALF | status << 32)


@compiled
def smaller_goal(memory: Memory, request: int) -> int:
    """A replica of the smaller model for a request; ``NOBODY`` where none has room for it or could ever serve it."""
    memory[POOL] = memory[SMALLER_AT]
    number = choose_replica(memory, request)
    if number != NOBODY:
        replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
        if not too_long(memory, memory[replica + GROUP], request):
            memory[visit_of(memory, request) + DEGRADED] = DEGRADED_SMALLER
            memory[pool_called(memory, request) + ENTERED_COUNT] -= 1
            return number
    memory[POOL] = memory[POOLS_AT]
    return NOBODY


@compiled
def goal(memory: Memory, request: int, in_world: bool) -> int:
    """The replica that a request goes to, in the pool of its model; ``NOBODY`` when it was turned away.

    In a quiet world nobody is.
    """
    memory[POOL] = memory[POOLS_AT]
    return goal_in_world(memory, request) if in_world else choose_replica(memory, request)


@compiled_apart
def goal_in_world(memory: Memory, request: int) -> int:
    """The same past the door, among replicas that may not be ready."""
    memory[POOL] = pool_called(memory, request)
    enter(memory, request)
    code = verdict(memory, request, memory[SMALLER_AT] != NONE)
    if code == SMALLER_MODEL:
        number = smaller_goal(memory, request)
        if number != NOBODY:
            return number
        code = verdict(memory, request, False)
    if code != ADMITTED:
        turn_away(memory, request, refusal_status(code))
        return NOBODY
    number = choose_replica(memory, request)
    if number == NOBODY:
        turn_away(memory, request, STATUS_QUEUE_FULL if has_server(memory, request) else STATUS_NOBODY_READY)
    return number


@compiled
def ready_time_ps(memory: Memory, replica: int, arrival_ps: int) -> int:
    """When the front end hands a request to the scheduler. A serial one has to be done with all before it."""
    group = memory[replica + GROUP]
    if memory[group + SERIAL_FRONT_END] == 0:
        return arrival_ps + memory[group + REQUEST_PS]
    memory[replica + FRONT_END] = max(arrival_ps, memory[replica + FRONT_END]) + memory[group + REQUEST_PS]
    return memory[replica + FRONT_END]


@compiled
def arrive(memory: Memory, request: int) -> None:
    """A request arrives. Where batch has a lane it may wait there; the next one tries when it has been sent."""
    if memory[HAS_BONDS] != 0 and passes_by(memory, request):
        return
    in_lane = has_lane(memory) and is_batch(memory, request)
    if in_lane and waits_in_lane(memory, request):
        return
    now_ps = memory[request + READY]
    send(memory, request)
    if in_lane:
        release_next(memory, pool_called(memory, request), now_ps)


@compiled_within
def send(memory: Memory, request: int) -> None:
    """Send a request to a replica, whose run it may cut short."""
    in_world = memory[VISITS_AT] != NONE
    number = goal(memory, request, in_world)
    if number == NOBODY:
        return
    memory[memory[POOL] + TURN] = next_replica(memory, number)
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    group = memory[replica + GROUP]
    memory[request + PLACE] = number
    if too_long(memory, group, request):
        memory[request + PLACE] = number | STATUS_TOO_LONG << 32
        if in_world:
            leave(memory, request, memory[request + READY])
        return
    if in_world:
        charge(memory, request)
        start_waiting(memory, request)
        begin_in_session(memory, request)
    ready_ps = ready_time_ps(memory, replica, memory[request + READY])
    memory[request + READY] = ready_ps
    if memory[group + PREFIX_CACHING] == 0:
        memory[request + PREFIX] = NONE
    scout(memory, replica)
    memory[memory[IN_FLIGHT_AT] + number] += 1
    memory[TOTAL_IN_FLIGHT] += 1
    if has_lane(memory) and is_batch(memory, request):
        memory[memory[SCRAPES_AT] + number * SCRAPE_WORDS + BATCH_IN_FLIGHT] += 1
    alone = memory[replica + QUEUE_HEAD] == NONE
    queue_last(memory, replica, request)
    if not alone:
        return
    if memory[memory[EVENTS_AT] + number] == NEVER_PS:
        wake(memory, replica, ready_ps)
        replay_matches(memory, number)
    elif memory[replica + RUN] > 1:
        cut_run(memory, replica, ready_ps)
        replay_matches(memory, number)


@compiled
def lose_request(memory: Memory, request: int, number: int) -> None:
    """A request is lost with its replica, at the pause; what it has produced is wasted."""
    memory[pool_called(memory, request) + LOST_COUNT] += 1
    end_in_session(memory, request, memory[PAUSED])
    # KV that came with it is gone: at another replica it computes its prompt again.
    memory[visit_of(memory, request) + NO_TOKEN] = -1
    come_to_nothing(memory, request, memory[PAUSED], 0, number | STATUS_LOST << 32)


@compiled
def lose_sequence(memory: Memory, replica: int, sequence: int) -> None:
    """A request that runs is lost with its replica, unless its client has given up by now."""
    request = memory[sequence + REQUEST]
    set_produced_tokens(memory, request, generated_tokens(memory, replica, sequence))
    if has_given_up(memory, request):
        end_attempt(memory, replica, patience_of(memory, request), memory[PAUSED])
    else:
        lose_request(memory, request, memory[replica + NUMBER])


@compiled
def lose_waiting(memory: Memory, replica: int, request: int) -> None:
    """A request that waits is lost with its replica; SGLang may have retracted one whose client has given up."""
    if has_given_up(memory, request):
        end_attempt(memory, replica, patience_of(memory, request), memory[PAUSED])
    else:
        lose_request(memory, request, memory[replica + NUMBER])


@compiled
def fail(memory: Memory, number: int) -> None:
    """Lose all that a replica holds; its row is of no use any more.

    Steps fixed before the failure count whole, in busy time and in gaps; their tokens are lost.
    """
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    if memory[replica + RUN] > 0:
        cut_run(memory, replica, memory[PAUSED] + 1)
        finish_run(memory, replica)
    close_accounts(memory, replica)
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        lose_sequence(memory, replica, sequence)
        sequence = memory[sequence + RUNNING_NEXT]
    sequence = memory[replica + PENDING]
    while sequence != NONE:
        if memory[sequence + STATE] == EVICTED:
            lose_sequence(memory, replica, sequence)
        sequence = memory[sequence + RING_NEXT]
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        queue_levels(memory, replica)
    request = memory[replica + QUEUE_HEAD]
    while request != NONE:
        behind = next_in_queue(memory, request)
        lose_waiting(memory, replica, request)
        request = behind
    memory[TOTAL_IN_FLIGHT] -= memory[memory[IN_FLIGHT_AT] + number]
    memory[memory[IN_FLIGHT_AT] + number] = 0
    memory[memory[SCRAPES_AT] + number * SCRAPE_WORDS + BATCH_IN_FLIGHT] = 0
    memory[memory[EVENTS_AT] + number] = NEVER_PS
    replay_matches(memory, number)


@compiled
def slow(memory: Memory, number: int) -> None:
    """Give a replica the physics of another group, from the next step that it fixes on."""
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    if memory[replica + RUN] > 1:
        cut_run(memory, replica, memory[PAUSED] + 1)
        replay_matches(memory, number)
    charge_before_change(memory, replica)
    memory[replica + GROUP] = memory[ORDER_GROUP]


@compiled
def dissolve(memory: Memory) -> None:
    """Nobody will ever serve those that wait in the lanes: they are turned away."""
    for pool in range(memory[POOLS_AT], memory[POOLS_END], POOL_WORDS):
        request = leave_lane(memory, pool)
        while request != NONE:
            memory[request + READY] = memory[PAUSED]
            enter(memory, request)
            turn_away(memory, request, STATUS_NOBODY_READY)
            request = leave_lane(memory, pool)


@compiled_apart
def obey(memory: Memory) -> None:
    """What becomes of a replica, or of the lanes, at the pause."""
    if memory[ORDER_KIND] == FAIL:
        fail(memory, memory[ORDER_REPLICA])
    elif memory[ORDER_KIND] == SLOW:
        slow(memory, memory[ORDER_REPLICA])
    elif memory[ORDER_KIND] == RELEASE:
        for pool in range(memory[POOLS_AT], memory[POOLS_END], POOL_WORDS):
            release_next(memory, pool, memory[PAUSED])
    else:
        dissolve(memory)
    memory[ORDER_KIND] = NONE


@compiled_apart
def be_given_up(memory: Memory) -> None:
    """An alarm rings; the run of the replica is cut short, where whoever gave up may be let go or make room."""
    time_ps = memory[ALARM_PS]
    number = ring(memory)
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    if memory[replica + RUN] > 1:
        cut_run(memory, replica, time_ps)
        replay_matches(memory, number)


@compiled
def advance(memory: Memory, until_ps: int) -> int:
    """Do what was ordered at the last pause, replay every event up to and including ``until_ps``, write the gauges.

    Returns:
        Time of the next event, ``NEVER_PS`` when all requests have ended; -1 after a broken rule.
    """
    if memory[ORDER_KIND] != NONE:
        obey(memory)
    events = memory[EVENTS_AT]
    winner = memory[TREE_AT] + 1
    request = memory[REQUESTS_AT] + memory[ARRIVED_COUNT] * REQUEST_WORDS
    end = memory[REQUESTS_AT] + memory[CLOCKED_COUNT] * REQUEST_WORDS
    arrival_ps = memory[request + READY] if request < end else NEVER_PS
    boundary_ps = memory[events + memory[winner]]
    while min(arrival_ps, memory[LATE_PS], boundary_ps) <= until_ps and memory[FAULT] == 0:
        if min(arrival_ps, memory[LATE_PS]) <= boundary_ps:
            coming = request
            if arrival_ps <= memory[LATE_PS]:
                request += REQUEST_WORDS
                expect_arrivals(memory, request, end)
                arrival_ps = memory[request + READY] if request < end else NEVER_PS
            else:
                coming = pop_late(memory)
            if coming == NONE:
                be_given_up(memory)
            else:
                arrive(memory, coming)
            boundary_ps = memory[events + memory[winner]]
        else:
            number = memory[winner]
            pass_boundary(memory, memory[REPLICAS_AT] + number * REPLICA_WORDS)
            boundary_ps = replay_matches(memory, number)
    memory[ARRIVED_COUNT] = (request - memory[REQUESTS_AT]) // REQUEST_WORDS
    memory[PAUSED] = until_ps
    for number in range(memory[REPLICA_COUNT]):
        gauge(memory, number, until_ps)
    if memory[FAULT] != 0:
        return -1
    return min(arrival_ps, memory[LATE_PS], boundary_ps)
