"""What prompts of one conversation share, where a log says who belongs together and nothing of the text."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import PrefixTree, Trace


def repeated_history(trace: Trace) -> Trace:
    """The same requests, each prompt of a session beginning with the prompt before it and its answer.

    So chat clients and agents send them. A prompt that is shorter than that shares nothing with what was before: the
    conversation was cut or begun anew. The last request of a conversation adds nothing that anybody repeats.

    Args:
        trace: With sessions and without prefixes; requests outside of sessions (-1) stay alone.

    Raises:
        BadInput: no sessions, or prefixes that are known already.
    """
    if trace.session is None:
        raise BadInput.at("workload.sessions", "the log names no sessions", "name the column: columns: {session: ...}")
    if trace.prefix_node is not None:
        raise BadInput.at("workload.sessions", "the log has block hashes, which say more", "leave it out")
    order = np.argsort(trace.session, kind="stable")
    session, inputs = trace.session[order], trace.input_tokens[order].astype(np.int64)
    total = inputs + trace.output_tokens[order]
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = (session[1:] == session[:-1]) & (session[1:] >= 0) & (inputs[1:] >= total[:-1])
    followed = np.append(follows[1:], False)
    own = np.where(followed, np.cumsum(followed) - 1, -1)
    before = np.where(follows, np.concatenate(([-1], own[:-1])), -1)
    said = np.where(follows, np.concatenate(([0], total[:-1])), 0)
    tree = PrefixTree(parent=before[followed].astype(np.int32), token_count=(total - said)[followed].astype(np.int32))
    node = np.empty(len(order), dtype=np.int32)
    node[order] = np.where(followed, own, before)
    return replace(trace, prefix_node=node, prefixes=tree)
