# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Ending a sequence where the model has written its end."""

import torch

from .canvas import Canvas
from .devices import to_device


def stop_at_ends(canvas: Canvas, eos_token_ids: torch.LongTensor, pad_token_id: int) -> None:
    """
    Ends a sequence once nothing before a generated end-of-text is hidden: all that was to be filled behind it is
    padding from then on, also what a step revealed there, as if it had never been generated.
    """
    is_generated = canvas.ranks_between(canvas.num_given, canvas.num_context)
    is_end = is_generated & torch.isin(canvas.ids, to_device(eos_token_ids, canvas.ids.device))
    is_hidden = canvas.ranks_between(canvas.num_context, canvas.ends)
    end, hidden = (  # the first position of each sequence, n where there is none
        torch.where(chosen, canvas.orders, canvas.ids.shape[1]).amin(dim=1) for chosen in (is_end, is_hidden)
    )
    is_over = end < hidden
    is_behind = canvas.ranks_between(canvas.num_given, canvas.num_tokens) & (canvas.orders > end[:, None])
    is_padded = is_behind & is_over[:, None]
    canvas.ids.masked_fill_(is_padded, pad_token_id)
    canvas.reveal_steps.masked_fill_(is_padded, -1)
    canvas.token_logprobs.masked_fill_(is_padded, 0.0)
    canvas.ends = torch.where(is_over.cpu(), canvas.num_context, canvas.ends)
