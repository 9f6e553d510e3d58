"""Floor 2: the physics of one replica: memory and step time, as pure functions of shapes and coefficients.

Promises: every formula states units, range and source; a question outside the range is refused or carries a
wider error band. Must not know queues, traffic, prices.
"""
