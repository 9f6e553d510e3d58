"""How many replicas a replay has room for in memory, asked before any is laid out."""

from tokenfleet.domain.fleet import ReplicaGroup
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.trace import Trace

ROOM_BYTES = 2 << 30
"""What the replicas of one replay may take: a laptop has it to spare."""
_WORD_BYTES = 8


def replica_bytes(trace: Trace, replica: ReplicaPhysics) -> int:
    """Bytes that one more replica adds to the buffer of a replay of ``trace``; mostly slots and prefix cache."""
    from tokenfleet.simulator import layout as at
    from tokenfleet.simulator.placing import cache_words, ring_size, state_words

    group = ReplicaGroup(replica=replica, replica_count=1)
    rows = at.REPLICA_WORDS + at.SAMPLE_WORDS + at.SCRAPE_WORDS
    return _WORD_BYTES * (rows + sum(state_words(trace, group, ring_size(trace))) + sum(cache_words(trace, group)))


def most_replicas(trace: Trace, replica: ReplicaPhysics) -> int:
    """Replicas whose state stays within ``ROOM_BYTES``; at least 1."""
    return max(1, ROOM_BYTES // replica_bytes(trace, replica))
