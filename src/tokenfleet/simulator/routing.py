"""Which replica a request goes to: the policies of the control room, compiled into the fleet loop."""

from tokenfleet.control import AFTER_BITS, lanes
from tokenfleet.control import routing as policies
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.layout import (
    ATTEMPTS,
    BATCH_IN_FLIGHT,
    BATCH_SLOTS,
    BY_LENGTH,
    BY_TIER,
    DOOR_AT,
    FIRST_REPLICA,
    HALF,
    HAS_LANE,
    IN_FLIGHT_AT,
    KEPT,
    LAST_REPLICA,
    LEAST_IN_FLIGHT,
    LEAST_KV,
    LEAST_WAITING,
    NONE,
    PLACE,
    POOL,
    POWER_OF_TWO,
    PREFIX_AFFINITY,
    QUEUE_LIMIT,
    RANK,
    READY_COUNT,
    REPLICA_WORDS,
    REPLICAS_AT,
    REQUEST_COST,
    REQUEST_WORDS,
    REQUESTS_AT,
    ROUND_ROBIN,
    ROUTER,
    ROW,
    SCRAPE_WORDS,
    SCRAPED_IN_FLIGHT,
    SCRAPED_KV_PPM,
    SCRAPED_WAITING,
    SCRAPES_AT,
    STATE_READY,
    STATES_AT,
    TOTAL_IN_FLIGHT,
    TURN,
    UP_TO,
    VISITS_AT,
    WAITING,
    WHO,
)
from tokenfleet.simulator.memory import Memory, input_tokens, priority_level
from tokenfleet.simulator.visits import pool_called, scrambled, visit_of

round_robin = compiled(policies.round_robin)
least_in_flight = compiled(policies.least_in_flight)
prefix_affinity = compiled(policies.prefix_affinity)
home_replica = compiled(policies.home_replica)
power_of_two = compiled(policies.power_of_two)
least_loaded = compiled(policies.least_loaded)
least_waiting = compiled(policies.least_waiting)
least_kv = compiled(policies.least_kv)
narrowest_fit = compiled(policies.narrowest_fit)
takes_batch = compiled(lanes.takes_batch)

NOBODY = -1
"""No replica takes the request."""


@compiled
def is_ready(memory: Memory, number: int) -> bool:
    """Whether a replica takes requests; in a quiet world, all do."""
    return memory[VISITS_AT] == NONE or memory[memory[STATES_AT] + number] == STATE_READY


@compiled
def has_room(memory: Memory, number: int, request: int) -> bool:
    """Whether the queue of a replica has room, as it tells a router that tries it; for batch, a slot as well."""
    if memory[VISITS_AT] == NONE:
        return True
    if memory[memory[REPLICAS_AT] + number * REPLICA_WORDS + WAITING] >= memory[QUEUE_LIMIT]:
        return False
    lane = memory[DOOR_AT]
    if lane == NONE or memory[lane + HAS_LANE] == 0 or memory[visit_of(memory, request) + WHO] & 1 == 0:
        return True
    scrape = memory[SCRAPES_AT] + number * SCRAPE_WORDS
    in_flight = memory[memory[IN_FLIGHT_AT] + number]
    return takes_batch(in_flight, memory[scrape + BATCH_SLOTS], memory[scrape + BATCH_IN_FLIGHT], memory[lane + KEPT])


@compiled
def ready_in_flight(memory: Memory) -> int:
    """Requests in flight on the ready replicas of the pool."""
    if memory[VISITS_AT] == NONE:
        return memory[TOTAL_IN_FLIGHT]
    total = 0
    for number in range(memory[memory[POOL] + FIRST_REPLICA], memory[memory[POOL] + LAST_REPLICA] + 1):
        if is_ready(memory, number):
            total += memory[memory[IN_FLIGHT_AT] + number]
    return total


@compiled
def ready_home(memory: Memory, request: int) -> int:
    """The home of a request, or ``NOBODY``; while it is not ready, the next one that is stands in for it."""
    pool = memory[POOL]
    key = memory[request + PLACE] & HALF
    if key == HALF or memory[pool + READY_COUNT] == 0:
        return NOBODY
    first = memory[pool + FIRST_REPLICA]
    home = first + home_replica(key, memory[pool + LAST_REPLICA] - first + 1)
    while not is_ready(memory, home):
        home = next_replica(memory, home)
    return home


@compiled
def nth_ready(memory: Memory, position: int) -> int:
    """Number of a ready replica, by its position among those of the pool that are ready."""
    number = memory[memory[POOL] + FIRST_REPLICA]
    if memory[memory[POOL] + READY_COUNT] == memory[memory[POOL] + LAST_REPLICA] - number + 1:
        return number + position
    while position > 0 or not is_ready(memory, number):
        if is_ready(memory, number):
            position -= 1
        number += 1
    return number


@compiled
def is_drawn(memory: Memory, request: int, number: int) -> bool:
    """Whether a ready replica is one of the two that a hash draws for a request."""
    count = memory[memory[POOL] + READY_COUNT]
    row = (request - memory[REQUESTS_AT]) // REQUEST_WORDS
    salt = 0
    if memory[VISITS_AT] != NONE:
        visit = visit_of(memory, request)
        row = memory[visit + ROW]
        salt = 2 * memory[visit + ATTEMPTS] - 2
    first = scrambled(row, salt) % count
    if number == nth_ready(memory, first):
        return True
    if count == 1:
        return False
    second = scrambled(row, salt + 1) % (count - 1)
    return number == nth_ready(memory, second + 1 if second >= first else second)


@compiled
def next_replica(memory: Memory, number: int) -> int:
    """The replica of the pool after this one, the first after the last."""
    pool = memory[POOL]
    return number + 1 if number < memory[pool + LAST_REPLICA] else memory[pool + FIRST_REPLICA]


@compiled
def bounded_value(memory: Memory, request: int) -> int:
    """What the bound of a group is held against, where requests are routed by length or by tier."""
    return input_tokens(memory, request) if memory[ROUTER] == BY_LENGTH else priority_level(memory, request)


@compiled
def serves(memory: Memory, number: int, request: int) -> bool:
    """Whether the router ever sends a request to a replica, by length or by tier."""
    if memory[ROUTER] not in (BY_LENGTH, BY_TIER):
        return True
    return bounded_value(memory, request) <= memory[memory[SCRAPES_AT] + number * SCRAPE_WORDS + UP_TO]


@compiled
def has_server(memory: Memory, request: int) -> bool:
    """Whether any ready replica of the pool serves a request, be its queue full or not."""
    for number in range(memory[memory[POOL] + FIRST_REPLICA], memory[memory[POOL] + LAST_REPLICA] + 1):
        if is_ready(memory, number) and serves(memory, number, request):
            return True
    return False


@compiled
def somebody_serves(memory: Memory, request: int) -> bool:
    """Whether any ready replica of the model that is asked for serves a request and has room for it."""
    pool = pool_called(memory, request)
    for number in range(memory[pool + FIRST_REPLICA], memory[pool + LAST_REPLICA] + 1):
        if is_ready(memory, number) and serves(memory, number, request) and has_room(memory, number, request):
            return True
    return False


@compiled
def scraped_score(memory: Memory, request: int, number: int, after: int) -> int:
    """Score of a replica by a policy that looks at what scrapes show, or at weights."""
    count = memory[memory[POOL] + READY_COUNT]
    in_flight = memory[memory[IN_FLIGHT_AT] + number]
    scrape = memory[SCRAPES_AT] + number * SCRAPE_WORDS
    then = memory[scrape + SCRAPED_IN_FLIGHT]
    if memory[ROUTER] == LEAST_WAITING:
        return least_waiting(memory[scrape + SCRAPED_WAITING], then, in_flight, after, count)
    if memory[ROUTER] == LEAST_KV:
        return least_kv(memory[scrape + SCRAPED_KV_PPM], then, in_flight, after, count)
    if memory[ROUTER] in (BY_LENGTH, BY_TIER):
        up_to, rank = memory[scrape + UP_TO], memory[scrape + RANK]
        value = bounded_value(memory, request)
        return narrowest_fit(value, up_to, rank, memory[scrape + SCRAPED_WAITING], then, in_flight, after, count)
    return least_loaded(in_flight, after, count, memory[scrape + REQUEST_COST])


@compiled
def emptiest(memory: Memory) -> int:
    """The replica that :func:`choose_replica` finds where all are ready and have room: one pass, for large fleets.

    How far a replica is from the turn, and so which one it is, stands in the low bits of its score: the processor
    compares several at once. In a quiet world requests go to the first pool, whose replicas count from 0.
    """
    count = memory[memory[POOL] + LAST_REPLICA] + 1
    turn = memory[memory[POOL] + TURN]
    in_flight = memory[IN_FLIGHT_AT]
    best = 1 << 62
    for number in range(count):
        after = number - turn + (count if number < turn else 0)
        best = min(best, least_in_flight(memory[in_flight + number], after))
    number = turn + (best & ((1 << AFTER_BITS) - 1))
    return number - count if number >= count else number


@compiled
def first_choice(memory: Memory, request: int) -> int:
    """What :func:`choose_replica` finds in a quiet world, where all are ready and have room, looking at few of them."""
    router = memory[ROUTER]
    if router == ROUND_ROBIN:
        return memory[memory[POOL] + TURN]
    if router == PREFIX_AFFINITY:
        home = ready_home(memory, request)
        if home != NOBODY:
            in_flight = memory[memory[IN_FLIGHT_AT] + home]
            count = memory[memory[POOL] + READY_COUNT]
            if prefix_affinity(in_flight, 0, count, True, memory[TOTAL_IN_FLIGHT]) < 0:
                return home
    return emptiest(memory)


@compiled_within
def choose_replica(memory: Memory, request: int) -> int:
    """Number of the pool's ready replica with the lowest score of those with room in their queue, or ``NOBODY``.

    The turn breaks ties, so that no replica is everybody's first.
    """
    if memory[VISITS_AT] == NONE and memory[ROUTER] <= PREFIX_AFFINITY:
        return first_choice(memory, request)
    return best_choice(memory, request)


@compiled_apart
def best_choice(memory: Memory, request: int) -> int:
    """The same, looking at all replicas of the pool."""
    router = memory[ROUTER]
    home = NOBODY
    total = 0
    if router == PREFIX_AFFINITY:
        home = ready_home(memory, request)
        total = ready_in_flight(memory)
    in_flight = memory[IN_FLIGHT_AT]
    count = memory[memory[POOL] + READY_COUNT]
    number = memory[memory[POOL] + TURN]
    best = NOBODY
    best_score = 1 << 62
    after = 0
    while after < count:
        if is_ready(memory, number):
            if router == LEAST_IN_FLIGHT:
                score = least_in_flight(memory[in_flight + number], after)
            elif router == ROUND_ROBIN:
                score = round_robin(after)
            elif router == PREFIX_AFFINITY:
                score = prefix_affinity(memory[in_flight + number], after, count, number == home, total)
            elif router == POWER_OF_TWO:
                drawn = is_drawn(memory, request, number)
                score = power_of_two(memory[in_flight + number], after, count, drawn)
            else:
                score = scraped_score(memory, request, number, after)
            if score < best_score and has_room(memory, number, request):
                best = number
                best_score = score
            after += 1
        number = next_replica(memory, number)
    return best
