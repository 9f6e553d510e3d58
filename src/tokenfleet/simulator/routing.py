"""Which replica a request goes to: the policies of the control room, compiled into the fleet loop."""

from tokenfleet.control import routing as policies
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    ATTEMPTS,
    HALF,
    IN_FLIGHT_AT,
    LEAST_IN_FLIGHT,
    LEAST_KV,
    LEAST_WAITING,
    NONE,
    PLACE,
    POWER_OF_TWO,
    PREFIX_AFFINITY,
    QUEUE_LIMIT,
    READY_COUNT,
    REPLICA_COUNT,
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
    VISITS_AT,
    WAITING,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.visits import scrambled, visit_of

round_robin = compiled(policies.round_robin)
least_in_flight = compiled(policies.least_in_flight)
prefix_affinity = compiled(policies.prefix_affinity)
home_replica = compiled(policies.home_replica)
power_of_two = compiled(policies.power_of_two)
least_loaded = compiled(policies.least_loaded)
least_waiting = compiled(policies.least_waiting)
least_kv = compiled(policies.least_kv)

NOBODY = -1
"""No replica takes the request."""
NUMBER_BITS = 20
"""Bits that hold the number of any replica."""


@compiled
def is_ready(memory: Memory, number: int) -> bool:
    """Whether a replica takes requests; in a quiet world, all do."""
    return memory[VISITS_AT] == NONE or memory[memory[STATES_AT] + number] == STATE_READY


@compiled
def has_room(memory: Memory, number: int) -> bool:
    """Whether the queue of a replica has room, as it tells a router that tries it."""
    if memory[VISITS_AT] == NONE:
        return True
    return memory[memory[REPLICAS_AT] + number * REPLICA_WORDS + WAITING] < memory[QUEUE_LIMIT]


@compiled
def ready_in_flight(memory: Memory) -> int:
    """Requests in flight on all ready replicas."""
    if memory[VISITS_AT] == NONE:
        return memory[TOTAL_IN_FLIGHT]
    total = 0
    for number in range(memory[REPLICA_COUNT]):
        if is_ready(memory, number):
            total += memory[memory[IN_FLIGHT_AT] + number]
    return total


@compiled
def ready_home(memory: Memory, request: int) -> int:
    """The home of a request, or ``NOBODY``; while it is not ready, the next one that is stands in for it."""
    key = memory[request + PLACE] & HALF
    if key == HALF or memory[READY_COUNT] == 0:
        return NOBODY
    home = home_replica(key, memory[REPLICA_COUNT])
    while not is_ready(memory, home):
        home = next_replica(memory, home)
    return home


@compiled
def nth_ready(memory: Memory, position: int) -> int:
    """Number of a ready replica, counted among those that are ready."""
    if memory[READY_COUNT] == memory[REPLICA_COUNT]:
        return position
    number = 0
    while position > 0 or not is_ready(memory, number):
        if is_ready(memory, number):
            position -= 1
        number += 1
    return number


@compiled
def is_drawn(memory: Memory, request: int, number: int) -> bool:
    """Whether a ready replica is one of the two that a hash draws for a request."""
    count = memory[READY_COUNT]
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
    """The replica after this one, the first after the last."""
    return number + 1 if number + 1 < memory[REPLICA_COUNT] else 0


@compiled
def scraped_score(memory: Memory, number: int, after: int) -> int:
    """Score of a replica by a policy that looks at what scrapes show, or at weights."""
    count = memory[READY_COUNT]
    in_flight = memory[memory[IN_FLIGHT_AT] + number]
    scrape = memory[SCRAPES_AT] + number * SCRAPE_WORDS
    then = memory[scrape + SCRAPED_IN_FLIGHT]
    if memory[ROUTER] == LEAST_WAITING:
        return least_waiting(memory[scrape + SCRAPED_WAITING], then, in_flight, after, count)
    if memory[ROUTER] == LEAST_KV:
        return least_kv(memory[scrape + SCRAPED_KV_PPM], then, in_flight, after, count)
    return least_loaded(in_flight, after, count, memory[scrape + REQUEST_COST])


@compiled
def emptiest(memory: Memory) -> int:
    """The replica that :func:`choose_replica` finds where all are ready and have room: one pass, for large fleets.

    The number of a replica rides in the low bits of its score, so that the processor compares several at once.
    """
    count = memory[REPLICA_COUNT]
    turn = memory[TURN]
    in_flight = memory[IN_FLIGHT_AT]
    best = 1 << 62
    for number in range(turn, count):
        score = least_in_flight(memory[in_flight + number], number - turn, count)
        best = min(best, score << NUMBER_BITS | number)
    for number in range(turn):
        score = least_in_flight(memory[in_flight + number], number - turn + count, count)
        best = min(best, score << NUMBER_BITS | number)
    return best & ((1 << NUMBER_BITS) - 1)


@compiled
def choose_replica(memory: Memory, request: int) -> int:
    """Number of the ready replica with the lowest score of those with room in their queue, or ``NOBODY``.

    The turn breaks ties, so that no replica is everybody's first.
    """
    router = memory[ROUTER]
    if memory[VISITS_AT] == NONE and router <= LEAST_IN_FLIGHT:
        return memory[TURN] if router == ROUND_ROBIN else emptiest(memory)
    home = NOBODY
    total = 0
    if router == PREFIX_AFFINITY:
        home = ready_home(memory, request)
        total = ready_in_flight(memory)
    in_flight = memory[IN_FLIGHT_AT]
    count = memory[READY_COUNT]
    number = memory[TURN]
    best = NOBODY
    best_score = 1 << 62
    after = 0
    while after < count:
        if is_ready(memory, number):
            if router == LEAST_IN_FLIGHT:
                score = least_in_flight(memory[in_flight + number], after, count)
            elif router == ROUND_ROBIN:
                score = round_robin(after)
            elif router == PREFIX_AFFINITY:
                score = prefix_affinity(memory[in_flight + number], after, count, number == home, total)
            elif router == POWER_OF_TWO:
                drawn = is_drawn(memory, request, number)
                score = power_of_two(memory[in_flight + number], after, count, drawn)
            else:
                score = scraped_score(memory, number, after)
            if score < best_score and has_room(memory, number):
                best = number
                best_score = score
            after += 1
        number = next_replica(memory, number)
    return best
