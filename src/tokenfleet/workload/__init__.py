"""Floor 2: the past. Reads logs, says what is wrong with them, describes them, draws traffic like them.

Promises: rows read = rows kept + rows dropped, by reason; unknown is never 0; the same seed draws the same bytes.
Must not know replicas, prices or promises.
"""
