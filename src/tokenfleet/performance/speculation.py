"""Speculative decoding in a step: checking what was drafted, drafting it, and what the host does for both."""

from dataclasses import replace

import numpy as np

from tokenfleet import catalog
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import PREDICTION_LAYER, Deployment, Speculation
from tokenfleet.performance.coefficients import constant
from tokenfleet.performance.residents import prediction_layer
from tokenfleet.performance.terms import PerContext, Seconds, Split, StepTerms, step_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What a drafter takes: ``count`` passes, one behind the other, over all decoding sequences."""

    terms: StepTerms
    """Of one pass of the drafter."""
    count: int

    def split(self, sequence_count: Seconds) -> Split:
        """What drafting adds to a step whose every token is charged as one of a prompt that the drafter reads.

        ``k x pass(S) - (k + 1) x S x slope``, where the slope is what the drafter takes for a token of a prompt: the
        tokens of decoding sequences are no prompt. The sum may be negative for many sequences; a whole step is not.

        Args:
            sequence_count: Decoding sequences, 0 or more; any shape.

        Returns:
            Seconds, of the same shape; 0 without sequences.
        """
        drafts = np.where(sequence_count > 0, float(self.count), 0.0)
        each = self.terms.token_split(np.maximum(sequence_count, 1.0))
        read = (self.count + 1) * sequence_count
        state = self.terms.sequence_state_s * sequence_count
        return Split(
            compute=drafts * each.compute - read * (self.terms.token_compute_s + self.terms.prefill_token_s),
            bandwidth=drafts * (each.bandwidth + state) - read * self.terms.token_activation_s,
            communication=drafts * each.communication - read * self.terms.token_message_s,
            overhead=drafts * each.overhead,
        )


def drafter_of(model: ModelArchitecture, speculation: Speculation) -> ModelArchitecture | None:
    """The model that drafts; ``None`` where text is looked up. A prediction layer reads the model's own head.

    Args:
        model: What is served.
        speculation: Names the drafter.

    Raises:
        BadInput: The catalog has no such model.
    """
    if speculation.drafter is None:
        return None
    if speculation.drafter == PREDICTION_LAYER:
        return replace(prediction_layer(model), vocab_size=model.vocab_size)
    return catalog.model(speculation.drafter)


def speculating_terms(
    terms: StepTerms, model: ModelArchitecture, gpu: Gpu, deployment: Deployment
) -> tuple[StepTerms, Drafting | None]:
    """Terms of a step of an engine that speculates, and the drafting in it.

    A decoding sequence computes ``k + 1`` tokens that read its context once. Drafters of the same engine launch
    their passes within one step, without scheduling of their own; each pass reads its own context. The host pays for
    speculation even where nothing is drafted.

    Args:
        terms: Of the engine without speculation.
        model: What is served.
        gpu: Where both run.
        deployment: Its engine's ``speculation``; without one, the terms come back as they are.

    Returns:
        The terms, and ``None`` where no model drafts.
    """
    speculation = deployment.engine.speculation
    if speculation is None:
        return terms, None
    count = speculation.draft_token_count
    checking = replace(
        terms,
        step_token_count=count + 1,
        fixed_s=terms.fixed_s + constant("speculation_step_s"),
        sequence_overhead_s=terms.sequence_overhead_s + constant("speculation_sequence_s"),
        context=replace(terms.context, compute_s=(count + 1) * terms.context.compute_s),
        window=replace(terms.window, compute_s=(count + 1) * terms.window.compute_s),
    )
    drafter = drafter_of(model, speculation)
    if drafter is None or count == 0:
        return checking, None
    one = replace(step_terms(drafter, gpu, deployment), fixed_s=0.0)
    both = replace(
        checking,
        token_compute_s=checking.token_compute_s + one.token_compute_s,
        token_activation_s=checking.token_activation_s + one.token_activation_s,
        token_message_s=checking.token_message_s + one.token_message_s,
        prefill_token_s=checking.prefill_token_s + one.prefill_token_s,
        pair_s=checking.pair_s + one.pair_s,
        window_pair_s=checking.window_pair_s + one.window_pair_s,
        context=_with_passes(checking.context, one.context, count),
        window=_with_passes(checking.window, one.window, count),
    )
    return both, Drafting(terms=one, count=count)


def _with_passes(checked: PerContext, drafted: PerContext, count: int) -> PerContext:
    return PerContext(
        compute_s=checked.compute_s + count * drafted.compute_s,
        bandwidth_s=checked.bandwidth_s + count * drafted.bandwidth_s,
    )
