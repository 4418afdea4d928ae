# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Computations of the studies on the simulated accelerator of `tests/accelerator.py`. They start and end on the CPU."""

import json
from collections.abc import Callable
from typing import Any

import torch

from eval.studies.context_orders.context_orders import score_context_orders
from eval.studies.runner.scores import infilling_nats
from eval.studies.sudoku.puzzles import decode
from tests.accelerator import IDS, PARTLY_MASKED, register_device, run_scenario, to_device
from tests.references import random_model, seeded

DECODINGS = ("confidence, refined", "confidence, no cache", "confidence, best of 16", "random, speculative")
Computation = Callable[[Any, Callable], torch.Tensor]


def make_decoding(name: str) -> Computation:
    return lambda model, put: put(decode(model, put(PARTLY_MASKED), put(IDS), name, seed=0)[2].cpu())


def computations() -> dict[str, Computation]:
    targets, context = IDS.amax(dim=1, keepdim=True) == IDS, IDS % 2 == 0
    return {
        "context orders": lambda model, put: put(
            score_context_orders(model, IDS, targets & ~context, context & ~targets, 2, seeded())
        ),
        "random halves": lambda model, put: put(torch.tensor(infilling_nats(model, put(IDS)))),
    } | {name: make_decoding(name) for name in DECODINGS}


if __name__ == "__main__":
    register_device()
    decoder = random_model(position_encoding="rotary")
    print(json.dumps({name: run_scenario(decoder, run, to_device) for name, run in computations().items()}))
