"""The way into the compiled kernel."""

from tokenfleet.simulator.machine_code import EntryPoint

advance = EntryPoint("tokenfleet.simulator.kernel", "advance", integer_count=1)
"""See :func:`tokenfleet.simulator.kernel.advance`."""
