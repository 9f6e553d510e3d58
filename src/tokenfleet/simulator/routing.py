"""Which replica a request goes to: the policies of the control room, compiled into the fleet loop."""

from tokenfleet.control import routing as policies
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    HALF,
    IN_FLIGHT_AT,
    NONE,
    PLACE,
    PREFIX_AFFINITY,
    QUEUE_LIMIT,
    READY_COUNT,
    REPLICA_COUNT,
    REPLICA_WORDS,
    REPLICAS_AT,
    ROUND_ROBIN,
    ROUTER,
    STATE_READY,
    STATES_AT,
    TOTAL_IN_FLIGHT,
    TURN,
    VISITS_AT,
    WAITING,
)
from tokenfleet.simulator.memory import Memory

round_robin = compiled(policies.round_robin)
least_in_flight = compiled(policies.least_in_flight)
prefix_affinity = compiled(policies.prefix_affinity)
home_replica = compiled(policies.home_replica)

NOBODY = -1
"""No replica takes the request."""


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
    count = memory[REPLICA_COUNT]
    home = home_replica(key, count)
    while not is_ready(memory, home):
        home = home + 1 if home + 1 < count else 0
    return home


@compiled
def choose_replica(memory: Memory, request: int) -> int:
    """Number of the ready replica with the lowest score of those with room in their queue, or ``NOBODY``.

    The turn breaks ties, so that no replica is everybody's first.
    """
    router = memory[ROUTER]
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
            if router == ROUND_ROBIN:
                score = round_robin(after)
            elif router == PREFIX_AFFINITY:
                score = prefix_affinity(memory[in_flight + number], after, count, number == home, total)
            else:
                score = least_in_flight(memory[in_flight + number], after, count)
            if score < best_score and has_room(memory, number):
                best = number
                best_score = score
                if router == ROUND_ROBIN:
                    break
            after += 1
        number = number + 1 if number + 1 < memory[REPLICA_COUNT] else 0
    return best
