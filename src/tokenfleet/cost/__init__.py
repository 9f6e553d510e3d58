"""Floor 2: money. What a fleet costs, and who of its tokens pays for what.

Promises: the lines of a bill add up to its total; a missing price stays missing. Must not choose a fleet.
"""
