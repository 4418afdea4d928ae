# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Block-Gibbs refinement: hide a part of what was generated, and draw it again given all the rest."""

import torch

from .canvas import Canvas
from .devices import draw_uniform
from .orders import in_place


def check_refine_length(canvas: Canvas, length: int) -> None:
    """
    Raises a `ValueError` if a sequence has fewer positions to generate than are to be hidden at once. A sequence that
    has none is left alone.
    """
    num_generated = canvas.ends - canvas.num_given
    fewest = int(num_generated[num_generated > 0].min())
    if length > fewest:
        raise ValueError(
            f"refine_length={length}, but a sequence has {fewest} generated tokens; hide at most so many at once."
        )


def draw_blocks(canvas: Canvas, length: int, generator: torch.Generator | None = None) -> torch.BoolTensor:
    """
    What to hide, (batch, n) in place: of each sequence `length` generated positions in a row (given ones between them
    are skipped, and the first follows the last), from a uniformly drawn one on. So all are hidden equally often.
    Nothing of a sequence in which nothing was generated.
    """
    is_generated = in_place(canvas.ranks_between(canvas.num_given, canvas.ends), canvas.orders)
    number = is_generated.long().cumsum(dim=1) - 1  # from the left, of each generated position
    count = is_generated.sum(dim=1, keepdim=True).clamp(min=1)
    start = (draw_uniform(len(count), 1, generator=generator, device=count.device) * count).long()
    return is_generated & ((number - start) % count < length)
