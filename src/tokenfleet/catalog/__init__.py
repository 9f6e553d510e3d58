"""Floor 1: facts as files: accelerators, models, engines, prices; every row with unit, source and date.

Owns the shipped tables, the names people write for one thing, and the reading of a model's ``config.json``.
Promises: one canonical name per thing; an unknown name fails with the nearest ones. Must not compute physics
or choose anything.
"""
