# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""A canvas on an encoder, which computes every sequence anew whenever something in it was revealed."""

import torch

from .canvas import Answer, Canvas, first_columns
from .devices import to_device
from .orders import in_place


class FullPassEncoder(Canvas):
    """One pass over whole sequences per query, of those sequences alone that are asked."""

    def query(self, num_queries: torch.LongTensor, sigma: torch.Tensor | None = None) -> Answer:
        """As for any canvas; `sigma` (batch,) is the noise level, for encoders that take one, unless as masked."""
        device = self.ids.device
        is_active = num_queries > 0
        active = to_device(is_active.nonzero().squeeze(1), device)
        ids = self.sequences()[active]
        is_token = in_place(self.ranks_between(torch.zeros_like(self.num_tokens), self.num_tokens), self.orders)[active]
        hidden_states = self.model.model(
            ids.masked_fill(~is_token, 0),  # what stands at padding need not be in the table
            attention_mask=is_token,
            sigma=None if sigma is None else sigma[active],
        ).last_hidden_state
        self.num_forward_passes += 1
        self.num_rows += ids.numel()

        sequences, columns = first_columns(num_queries, device)
        ranks = to_device(self.num_context, device)[sequences] + columns
        rows = to_device(is_active.cumsum(dim=0) - 1, device)  # of the active sequences
        return hidden_states[rows[sequences], self.orders[sequences, ranks]], (sequences, ranks)
