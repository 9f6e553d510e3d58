"""Floor 5: people: scenario files, the only composition root, the command line, the report.

Promises: bad input names every problem and writes nothing; every number shown was computed below. Must not
compute physics, search or judge.
"""
