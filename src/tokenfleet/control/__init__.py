"""Floor 2: the brain without hands: which replica gets a request.

Owns routing. Promises: pure functions of what a controller can know, which numba compiles as they are. Must not
know the future (the output length of a request), time sources or I/O.
"""

from tokenfleet.control.routing import home_replica, least_in_flight, prefix_affinity, round_robin

__all__ = ["home_replica", "least_in_flight", "prefix_affinity", "round_robin"]
