"""Prompts that requests share with nobody but their own next attempts.

A client that gives up and comes back sends the same prompt. What its last attempt has computed of it is in the prefix
cache until it is evicted. So where clients do that, each request has a node of its own in the prefix tree, for what its
prompt has beyond what it shares with others. What is generated is not among it: the next attempt draws other tokens.
"""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.domain.world import World


def finds_itself(fleet: Fleet, world: World) -> bool:
    """Whether a request may come back to a replica that has computed its prompt: only one that timed out does.

    Who is refused has computed nothing, and a replica that failed has lost it.
    """
    clients = world.clients
    times_out = clients.first_token_timeout_s is not None or clients.timeout_s is not None
    cached = any(group.replica.deployment.engine.prefix_caching for group in fleet.groups)
    return times_out and cached and clients.attempt_count > 1


def with_own_prompts(trace: Trace) -> Trace:
    """The trace with a node behind the shared ones for the rest of each prompt, unless its KV is delivered."""
    tree = trace.prefixes
    nodes = 0 if tree is None else len(tree.parent)
    shared = np.full(trace.request_count, -1, dtype=np.int32) if trace.prefix_node is None else trace.prefix_node
    depth = np.zeros(nodes + 1, dtype=np.int64)  # the last one, which -1 points at, stands for no node
    if tree is not None:
        depth[:nodes] = tree.depth_tokens
    rest = trace.input_tokens - depth[shared]
    rest = rest if trace.kv_delivered is None else np.where(trace.kv_delivered, 0, rest)
    own = np.flatnonzero(rest > 0)
    parent = np.concatenate([np.zeros(0, dtype=np.int32) if tree is None else tree.parent, shared[own]])
    count = np.concatenate([np.zeros(0, dtype=np.int32) if tree is None else tree.token_count, rest[own]])
    node = shared.copy()
    node[own] = nodes + np.arange(len(own))
    longer = PrefixTree(parent=parent.astype(np.int32), token_count=count.astype(np.int32))
    return replace(trace, prefixes=longer, prefix_node=node)
