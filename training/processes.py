# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes, on one machine or more: who prepares data for the others, and whether all found the same."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.distributed import Store
from torch.distributed.distributed_c10d import _get_default_store

PATIENCE = timedelta(days=7)


@contextmanager
def in_turn(accelerator: Accelerator) -> Iterator[None]:
    """
    The main process goes first, then one process of each other machine, then the rest, who find in their machine's
    cache what these made; all leave together. Once per run.

    As Accelerate's `main_process_first`, but it may take hours, as to tokenize a large corpus does, where collective
    operations of GPUs give up after ten minutes; and if one process fails, the others end without a word.
    """
    if accelerator.num_processes == 1:
        yield
        return
    store, process = _get_default_store(), accelerator.process_index
    first_of_machine = process - accelerator.local_process_index
    outcome = "failed"
    try:
        if not accelerator.is_main_process:
            wait_for(store, [0 if accelerator.is_local_main_process else first_of_machine])
        yield
        outcome = "done"
    finally:
        store.set(f"turn of process {process}", outcome)
    wait_for(store, range(accelerator.num_processes))


def wait_for(store: Store, processes: Iterable[int]) -> None:
    turns = [f"turn of process {process}" for process in processes]
    store.wait(turns, PATIENCE)
    if any(store.get(turn) != b"done" for turn in turns):
        sys.exit(1)  # that process says why


def check_alike(accelerator: Accelerator, **found: Any) -> None:
    """
    Raises a `ValueError`, in all processes, for what one has found otherwise than the main one.

    Machines that do not see the same files would train different models, and add up their gradients.
    """
    expected, *others = gather_object([found])
    for process, other in enumerate(others, start=1):
        for name, value in other.items():
            if value != expected[name]:
                raise ValueError(
                    f"Process {process} finds another {name} than process 0: {value}, not {expected[name]}. Every "
                    "machine must see the same output_dir and the same corpus."
                )
