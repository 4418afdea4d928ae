# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training objectives: modules that contain a model and return the loss of a batch, in nats per token.

Objectives have no randomness: orders, diffusion times and masked positions are part of the batch (see
training/draws.py). With uniformly random orders, all objectives except the score entropy are unbiased estimates of the
same upper bound on -log p(x) / n. This bound is Eq. 7 of the paper, which equals Eq. 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn
from torch.utils.checkpoint import checkpoint

from modeling_aogpt import modeling_aogpt as modeling
from modeling_aogpt.loading import Model
from modeling_aogpt.modeling_aogpt import LOGITS_PER_CHUNK, Loss, head_loss
from modeling_aogpt.orders import index_by_rank
from modeling_aogpt.unmasking import log_linear_noise
from modeling_aogpt.validation import check_text_ids, prepare_input_ids


def compile_head_loss(**options: Any) -> None:
    """Compile the loss of the head. `options` are arguments of `torch.compile`.

    The head and its loss are excluded from the graph of a compiled model. If they were included, an encoder would need
    a graph for every number of masked tokens, and DDP of PyTorch before 2.13 could not divide the graph, because it
    contains a `torch.autograd.Function`.
    """
    modeling.differentiate_chunk = torch.compile(modeling.differentiate_chunk, **options)


class Objective(nn.Module):
    """Base class of objectives. Accelerate uses `_no_split_modules` and `tie_weights` to shard the model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.distillation_weight: float | None = None
        self.source: Model | None = None
        self._no_split_modules = model._no_split_modules

    def tie_weights(self) -> None:
        """Tie the weights of the model again. Accelerate calls this after it has moved them."""
        self.model.tie_weights()

    @contextmanager
    def initial_model(self) -> Iterator[Model]:
        """Context manager that returns the initial model: `source`, or else the model without its adapters."""
        parts = self.model.modules()
        adapters = [part for part in parts if isinstance(part, (BaseTunerLayer, AuxiliaryTrainingWrapper))]
        for adapter in adapters:
            adapter.enable_adapters(False)
        with torch.no_grad():
            yield self.source or self.model
        for adapter in adapters:
            adapter.enable_adapters(True)


class AnyOrderObjective(Objective):
    """Mean any-order loss (Eq. 7). The decoder predicts each token given the tokens before it in an order.

    With `distillation_weight`, the loss of each label in a left-to-right sequence also has this weight times the
    divergence KL(initial model || model).
    """

    def forward(
        self,
        input_ids: torch.LongTensor,
        orders: torch.LongTensor,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        attention_mask: torch.LongTensor | None = None,
        left_to_right_rows: torch.LongTensor | None = None,
    ) -> torch.Tensor:
        """Return the loss of sequences. `input_ids`, `orders` and `labels` have shape (batch, n).

        Padding must be on the right, last in the orders, and have the label -100, as in the batches of the data
        collator. Then no token attends to padding, and `attention_mask`, which these batches contain, is not used.

        `labels` defaults to `input_ids`. Tokens with the label -100 are not part of the loss. The sum of the losses of
        the other tokens is divided by `num_items_in_batch`, which defaults to their number. The first token is always
        text: packed text may begin with an end-of-text that is also the model's start token.
        """
        output, orders = self.model.forward_by_rank(input_ids, orders, attention_mask=None, has_start_tokens=False)
        labels = (input_ids if labels is None else labels).long()
        check_text_ids(self.model, "labels", labels, also_allowed=-100)
        states, labels = output.last_hidden_state, index_by_rank(labels, orders)
        loss = self.compute_loss(states, labels, num_items_in_batch)
        if self.distillation_weight and len(left_to_right_rows):
            is_label = (labels != -100).to(torch.promote_types(states.dtype, torch.float32))
            count = is_label.sum() if num_items_in_batch is None else num_items_in_batch
            weights = self.distillation_weight * is_label / count
            loss = loss + self.compute_divergence(*(x[left_to_right_rows] for x in (states, weights, input_ids)))
        return loss

    @torch.compiler.disable  # see `compile_head_loss`
    def compute_loss(
        self, hidden_states: torch.Tensor, labels: torch.LongTensor, num_items_in_batch: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the loss for the hidden states (batch, n, hidden_size) and the labels (batch, n), both by rank."""
        return self.model.compute_loss_of_states(hidden_states, labels, num_items_in_batch)

    @torch.compiler.disable  # see `compile_head_loss`
    def compute_divergence(
        self, states: torch.Tensor, weights: torch.Tensor, input_ids: torch.LongTensor
    ) -> torch.Tensor:
        """Return the weighted sum of divergences of left-to-right sequences. The backward pass recomputes the logits.

        `states` (batch, n, hidden_size) and `weights` (batch, n) are by rank, `input_ids` (batch, n) by position.
        """
        with self.initial_model() as source:
            output, _ = source.forward_by_rank(input_ids, None, attention_mask=None, has_start_tokens=False)
        # A quarter of the chunk of `head_loss`, because autograd keeps four times as many tensors.
        limit = LOGITS_PER_CHUNK["cpu" if states.is_cpu else "accelerator"] // 4
        size = max(limit // self.model.config.vocab_size, 1)
        chunks = (part.flatten(0, 1).split(size) for part in (states, output.last_hidden_state, weights))
        shared = [self.model.lm_head, source.lm_head], self.model.config.num_valid_tokens
        options = {"use_reentrant": False, "preserve_rng_state": False}
        return sum(checkpoint(_divergence, *shared, *chunk, **options) for chunk in zip(*chunks, strict=True))


def _divergence(
    heads: list[nn.Linear], num_ids: int, states: torch.Tensor, source_states: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of the divergences of N positions, over the first `num_ids` ids, which are text."""
    logits, source_logits = (
        F.linear(inputs, layer.weight, layer.bias)[:, :num_ids].to(torch.promote_types(inputs.dtype, torch.float32))
        for inputs, layer in zip((states, source_states), heads, strict=True)
    )
    kl = F.kl_div(logits.log_softmax(-1), source_logits.log_softmax(-1), reduction="none", log_target=True)
    return (kl.sum(-1) * weights).sum()


class MaskedDiffusionObjective(Objective):
    """Masked-diffusion loss (Eq. 1). The encoder predicts the masked tokens given the other tokens, with weight 1 / t.

    If every token is masked independently with probability t, the expected loss is the masked-diffusion bound. If m of
    n tokens are masked, where m is uniform in 1 ... n and t = m / n, it is the any-order form of the bound (Eq. 7).
    """

    loss: Loss = "cross_entropy"

    def forward(
        self,
        input_ids: torch.LongTensor,
        is_masked: torch.BoolTensor,
        masked_indices: torch.LongTensor,
        times: torch.DoubleTensor,
    ) -> torch.Tensor:
        """Return the loss of a batch.

        Args:
            input_ids (`torch.LongTensor` of shape `(batch, n)`): Sequences without padding.
            is_masked (`torch.BoolTensor` of shape `(batch, n)`): Whether each token is masked.
            masked_indices (`torch.LongTensor` of shape `(num_masked,)`): Indices of the masked tokens in
                `input_ids.flatten()`. If they were computed here, the CPU would wait for the device.
            times (`torch.DoubleTensor` of shape `(batch,)`): Diffusion time t of each sequence, in (0, 1].
        """
        input_ids = prepare_input_ids(self.model, input_ids)
        masked_ids = input_ids.masked_fill(is_masked, self.model.config.mask_token_id)
        # With None, a model that uses noise levels computes them from the fraction of masked positions.
        sigma = log_linear_noise(times) if self.loss == "score_entropy" else None
        output = self.model.model(masked_ids, sigma=sigma)
        return self.compute_loss(output.last_hidden_state, input_ids, masked_indices, times)

    @torch.compiler.disable  # see `compile_head_loss`
    def compute_loss(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.LongTensor,
        masked_indices: torch.LongTensor,
        times: torch.DoubleTensor,
    ) -> torch.Tensor:
        """Return the loss for the hidden states (batch, n, hidden_size) of the encoder."""
        weights = (1 / times / input_ids.numel())[:, None].expand_as(input_ids)
        return head_loss(
            hidden_states.flatten(0, 1).index_select(0, masked_indices),
            self.model.lm_head,
            input_ids.flatten()[masked_indices],
            weights.flatten()[masked_indices],
            self.loss,
            self.model.config.num_valid_tokens,
        )


class ScoreEntropyObjective(MaskedDiffusionObjective):
    """Denoising score entropy of SEDD (arXiv 2310.16834) with the absorbing graph and log-linear noise.

    A token is masked with probability 1 - e^-sigma(t) = (1 - eps) t (see `log_linear_noise`). The model's score of an
    id estimates the probability of the sequence with this id, divided by that of the sequence with the mask. Given the
    original text, this ratio is r = 1 / (e^sigma - 1) for the id of the original token, and 0 for all other ids. The
    model's score is r exp(logits - log V), for V ids of text. The loss of a position is

        sigma'(t) (sum of scores - r log score[token] + r log r - r).

    All terms have the factor sigma'(t) r = 1 / t, which is the weight of Eq. 1. If the scores sum to r, the loss equals
    that of `MaskedDiffusionObjective` with the same masked positions.
    """

    loss: Loss = "score_entropy"


OBJECTIVES = {
    ("decoder", "any_order"): AnyOrderObjective,
    ("encoder", "any_order"): MaskedDiffusionObjective,
    ("encoder", "masked_diffusion"): MaskedDiffusionObjective,
    ("encoder", "score_entropy"): ScoreEntropyObjective,
}
