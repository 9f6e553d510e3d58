"""How many replicas a replay has room for in memory, asked before any is laid out."""

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.trace import Trace

ROOM_BYTES = 2 << 30
"""What the replicas of one replay may take: a laptop has it to spare."""
_WORD_BYTES = 8


def replica_bytes(trace: Trace, replica: ReplicaPhysics) -> int:
    """Bytes that one more replica adds to the buffer of a replay of ``trace``; mostly slots and prefix cache."""
    from tokenfleet.simulator.building import place

    one, two = (
        place(trace, Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),), router="round_robin")).words
        for count in (1, 2)
    )
    return (two - one) * _WORD_BYTES


def most_replicas(trace: Trace, replica: ReplicaPhysics) -> int:
    """Replicas whose state stays within ``ROOM_BYTES``; at least 1."""
    return max(1, ROOM_BYTES // replica_bytes(trace, replica))
