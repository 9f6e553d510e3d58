"""Floor 3: the virtual world: the compiled replica engine and the fleet around it.

Promises: jumping over steps equals stepping, exactly; the same trace and fleet give the same bytes; requests
and KV blocks are conserved. Must not choose a fleet, know prices or read files.
"""
