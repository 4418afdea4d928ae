# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Ending a sequence where the model has written its end."""

import torch

from .canvas import Canvas
from .devices import to_device
from .orders import in_place


def first_end(canvas: Canvas, eos_token_ids: torch.LongTensor) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    The first position of each sequence where end-of-text was generated, and the first that is hidden, (batch,) each; n
    where there is none.
    """
    is_generated = canvas.ranks_between(canvas.num_given, canvas.num_context)
    is_end = is_generated & torch.isin(canvas.ids, to_device(eos_token_ids, canvas.ids.device))
    is_hidden = canvas.ranks_between(canvas.num_context, canvas.num_tokens)
    end, hidden = (
        torch.where(chosen, canvas.orders, canvas.ids.shape[1]).amin(dim=1) for chosen in (is_end, is_hidden)
    )
    return end, hidden


def stop_at_ends(canvas: Canvas, eos_token_ids: torch.LongTensor) -> None:
    """
    Ends a sequence once nothing before a generated end-of-text is hidden: what was revealed behind that is hidden
    again, so that nobody is shown it, and stays so.
    """
    end, hidden = first_end(canvas, eos_token_ids)
    is_over = end < hidden
    is_generated = canvas.ranks_between(canvas.num_given, canvas.num_context)
    is_behind = is_generated & is_over[:, None] & (canvas.orders > end[:, None])
    if is_behind.any():
        canvas.hide(in_place(is_behind, canvas.orders), canvas.orders)
    canvas.ends = torch.where(is_over.cpu(), canvas.num_context, canvas.ends)


def clear_after_ends(canvas: Canvas, eos_token_ids: torch.LongTensor, pad_token_id: int) -> None:
    """Puts padding at all positions to be filled behind a generated end-of-text, as if never generated."""
    end, _ = first_end(canvas, eos_token_ids)
    is_cleared = canvas.ranks_between(canvas.num_given, canvas.num_tokens) & (canvas.orders > end[:, None])
    canvas.ids[is_cleared] = pad_token_id
    canvas.reveal_steps[is_cleared] = -1
    canvas.token_logprobs[is_cleared] = 0.0
    canvas.num_context = canvas.num_tokens.clone()
