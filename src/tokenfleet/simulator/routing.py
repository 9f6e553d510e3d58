"""Which replica a request goes to: the policies of the control room, compiled into the fleet loop."""

from tokenfleet.control import routing as policies
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    HALF,
    IN_FLIGHT_AT,
    PLACE,
    PREFIX_AFFINITY,
    REPLICA_COUNT,
    ROUND_ROBIN,
    ROUTER,
    TOTAL_IN_FLIGHT,
    TURN,
)
from tokenfleet.simulator.memory import Memory

round_robin = compiled(policies.round_robin)
least_in_flight = compiled(policies.least_in_flight)
prefix_affinity = compiled(policies.prefix_affinity)
home_replica = compiled(policies.home_replica)


@compiled
def choose_replica(memory: Memory, request: int) -> int:
    """Number of the replica with the lowest score; the turn breaks ties, so that no replica is everybody's first."""
    count = memory[REPLICA_COUNT]
    turn = memory[TURN]
    router = memory[ROUTER]
    if router == ROUND_ROBIN:
        return turn
    home = -1
    if router == PREFIX_AFFINITY and (memory[request + PLACE] & HALF) != HALF:
        home = home_replica(memory[request + PLACE] & HALF, count)
    in_flight = memory[IN_FLIGHT_AT]
    total = memory[TOTAL_IN_FLIGHT]
    best = 0
    best_score = 1 << 62
    for number in range(count):
        after = number - turn if number >= turn else number - turn + count
        if router == PREFIX_AFFINITY:
            score = prefix_affinity(memory[in_flight + number], after, count, number == home, total)
        else:
            score = least_in_flight(memory[in_flight + number], after, count)
        if score < best_score:
            best = number
            best_score = score
    return best
