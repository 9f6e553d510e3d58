"""Floor 0: the vocabulary. Frozen data with the unit last in each name, and the error tree.

Owns every type that crosses the border of a room. Promises: no behaviour beyond properties, no files, no
clocks, no imports from other rooms. SI units only (seconds, bytes, FLOP/s), counts end in ``_count``, shares
in ``_fraction``. The glossary page owns the words.
"""
