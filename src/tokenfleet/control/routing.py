"""Routing: each policy scores one replica; the request goes to the lowest score.

Every function takes and returns integers that fit in 64 bits, so that compiled and plain Python agree. A router
knows the counts it keeps itself: how many requests it has sent to a replica that have not ended. What happens inside
a replica it knows from the last scrape, and what it has sent since. It does not know output lengths.
"""

LOAD_SLACK_COUNT = 4
"""Requests above the fair share that a replica may hold before it stops being home to more."""
AFTER_BITS = 20
"""Bits of a score that tell how many replicas come in between, for at most a million of them."""
DRAWN = 1 << 62
"""What puts the two replicas that were drawn before all others."""
WEIGHT_ONE = 1 << 12
"""Cost of a request on a replica of weight 1."""
MOST_COUNT = (1 << 31) - 1
NOT_SERVED = 1 << 62
"""Score of a replica that does not serve a request at all."""
MOST_GROUPS = 64
_MOST_LOAD = (1 << 20) - 1


def round_robin(after_count: int) -> int:
    """Everybody in turn.

    Args:
        after_count: How many replicas come between the one whose turn it is and this one, 0 .. replicas - 1.

    Returns:
        Score, lowest wins.
    """
    return after_count


def least_in_flight(in_flight_count: int, after_count: int) -> int:
    """The replica with the fewest requests in flight; among equals, the one whose turn comes first.

    Args:
        in_flight_count: Requests sent to this replica that have not ended, at least 0, below 2**31.
        after_count: As for :func:`round_robin`, below 2**20.

    Returns:
        Score, lowest wins; ``after_count`` in its ``AFTER_BITS`` lowest bits.
    """
    return in_flight_count << AFTER_BITS | after_count


def home_replica(key: int, replica_count: int) -> int:
    """The replica that a session or a shared prefix belongs to: a hash, spread evenly.

    Args:
        key: Number of the session or prefix, 0 .. 2**31 - 1.
        replica_count: All replicas, at least 1.

    Returns:
        Number of the replica, 0 .. replica_count - 1.
    """
    mixed = (key & 0x7FFFFFFF) * 0x9E3779B1 & 0x7FFFFFFF
    mixed = (mixed ^ mixed >> 15) * 0x85EBCA6B & 0x7FFFFFFF
    return (mixed ^ mixed >> 13) % replica_count


def prefix_affinity(
    in_flight_count: int, after_count: int, replica_count: int, is_home: bool, total_in_flight_count: int
) -> int:
    """Home, where the prefix is likely cached, unless home holds well more than its share; then least in flight.

    The bound is a quarter above the mean plus a few requests: a prefix that everybody shares must not load one
    replica with everybody (consistent hashing with bounded loads, Mirrokni et al. 2018).

    Args:
        in_flight_count: As for :func:`least_in_flight`.
        after_count: As for :func:`round_robin`.
        replica_count: All replicas, at least 1, below 2**31.
        is_home: Whether this is the home of the request's session or prefix.
        total_in_flight_count: Requests in flight on all replicas, below 2**31.

    Returns:
        Score, lowest wins; -1 for a home with room.
    """
    bound = 5 * total_in_flight_count + 4 * LOAD_SLACK_COUNT * replica_count
    if is_home and 4 * replica_count * in_flight_count <= bound:
        return -1
    return in_flight_count * replica_count + after_count


def power_of_two(in_flight_count: int, after_count: int, replica_count: int, is_drawn: bool) -> int:
    """Of two replicas drawn by a hash the one with fewer requests in flight (Mitzenmacher 2001).

    Those not drawn follow, in case both are full.

    Args:
        in_flight_count: As for :func:`least_in_flight`, below 2**30.
        after_count: As for :func:`round_robin`.
        replica_count: As for :func:`prefix_affinity`.
        is_drawn: Whether this is one of the two.

    Returns:
        Score, lowest wins.
    """
    score = in_flight_count * replica_count + after_count
    return score - DRAWN if is_drawn else score


def least_loaded(in_flight_count: int, after_count: int, replica_count: int, request_cost: int) -> int:
    """The replica that would be the least loaded with this request: replicas of twice the weight hold twice as many.

    Args:
        in_flight_count: As for :func:`least_in_flight`.
        after_count: As for :func:`round_robin`.
        replica_count: All replicas, at least 1, below 2**18.
        request_cost: ``WEIGHT_ONE`` over the weight of the replica, 1 .. 2**12.

    Returns:
        Score, lowest wins.
    """
    return (in_flight_count + 1) * request_cost * replica_count + after_count


def least_waiting(
    waiting_count: int, scraped_in_flight_count: int, in_flight_count: int, after_count: int, replica_count: int
) -> int:
    """The replica with the fewest requests waiting, as the last scrape saw it and the router's own counts move it on.

    Where nobody is thought to wait, the fewest in flight.

    Args:
        waiting_count: Requests waiting at the last scrape, at least 0, below 2**31.
        scraped_in_flight_count: Requests in flight there at that time.
        in_flight_count: Requests in flight now, below 2**30.
        after_count: As for :func:`round_robin`.
        replica_count: All replicas, at least 1, below 2**18.

    Returns:
        Score, lowest wins; below 0 where nobody is thought to wait.
    """
    waiting = waiting_count + in_flight_count - scraped_in_flight_count
    if waiting_count > 0 and waiting > 0:
        return waiting * replica_count + after_count
    return (in_flight_count - MOST_COUNT) * replica_count + after_count


def least_kv(
    kv_used_ppm: int, scraped_in_flight_count: int, in_flight_count: int, after_count: int, replica_count: int
) -> int:
    """The replica with the smallest share of its KV blocks in use, as the last scrape saw it.

    The router's own counts move it on: each request in flight is taken to hold as much as those of then did.

    Args:
        kv_used_ppm: Blocks in use at the last scrape, in millionths, 0 .. 1,000,000.
        scraped_in_flight_count: Requests in flight there at that time, at least 0, below 2**31.
        in_flight_count: Requests in flight now, at least 0, below 2**31.
        after_count: As for :func:`round_robin`.
        replica_count: All replicas, at least 1, below 2**31.

    Returns:
        Score, lowest wins.
    """
    used = (kv_used_ppm + 1) * (in_flight_count + 1) // (scraped_in_flight_count + 1)
    return min(used, MOST_COUNT) * replica_count + after_count


def narrowest_fit(
    value: int,
    up_to: int,
    rank: int,
    waiting_count: int,
    scraped_in_flight_count: int,
    in_flight_count: int,
    after_count: int,
    replica_count: int,
) -> int:
    """The replica of the narrowest group that serves a request, or of a wider one while those have a queue.

    By length the short prompts have replicas that no long one holds up; by tier the most urgent requests have replicas
    that nobody below them takes. A group serves all up to its bound. The short and the urgent go over to a
    wider group when more than a few wait at theirs, as the last scrape saw it and the router's own counts move it on;
    the long and the less urgent never go the other way.

    Args:
        value: Prompt length, or place of the priority among those there are, from 0 on.
        up_to: Largest value that the replica serves.
        rank: Place of its group by bound, 0 for the narrowest, below 64.
        waiting_count: As for :func:`least_waiting`.
        scraped_in_flight_count: As there.
        in_flight_count: Requests in flight now, below 2**30.
        after_count: As for :func:`round_robin`.
        replica_count: All replicas, at least 1, below 2**16.

    Returns:
        Score, lowest wins; ``NOT_SERVED`` where the replica does not serve it.
    """
    if value > up_to:
        return NOT_SERVED
    waiting = 0
    if waiting_count > 0:
        waiting = waiting_count + in_flight_count - scraped_in_flight_count
    excess = min(max(waiting - LOAD_SLACK_COUNT, 0), _MOST_LOAD)
    load = min(in_flight_count, _MOST_LOAD)
    return ((excess * MOST_GROUPS + rank) * (_MOST_LOAD + 1) + load) * replica_count + after_count
