# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Evaluation during training: bits per byte on held-out text, and generated texts."""

import math
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from common.data import evenly_spaced
from common.files import write_text
from common.packing import keep_first_tokens
from common.results import ORDER_KINDS, ORDER_SEED
from common.tokenizers import decode
from modeling_aogpt import AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM, MDMEncoderForMaskedLM
from modeling_aogpt.loading import Model
from training.arguments import LEFT_TO_RIGHT_ORDERS, TrainingArguments, order_settings
from training.draws import MaskDraws
from training.objectives import MaskedDiffusionObjective

SEPARATOR = f"\n{'-' * 80}\n"  # between the texts in a file of samples
SAMPLE_SEED = 20250624  # the same in every evaluation, so that texts differ between evaluations only through training


@torch.no_grad()
def evaluate(model: Model, rows: Dataset, training: TrainingArguments, accelerator: Accelerator) -> dict[str, Any]:
    """Compute the bits per byte of `eval_sequences` evenly spaced sequences, which are divided among the processes.

    Return the bits per byte over all sequences, `left_to_right` (only for decoders) and `any_order`, and the numbers of
    `sequences`, `bytes` and `seconds`. In examples, only the answers are scored, given the context.
    """
    started = time.perf_counter()
    numbers = evenly_spaced(len(rows), training.eval_sequences or len(rows))
    num_rows = len(numbers)
    is_encoder = isinstance(model, MDMEncoderForMaskedLM)
    kinds = ["any_order"] if is_encoder else list(ORDER_KINDS)
    samples_of_process = range(num_rows)[accelerator.process_index :: accelerator.num_processes]
    totals = torch.zeros(1 + len(kinds), dtype=torch.float64)  # bytes, then nats for each kind of order
    for first in range(0, len(samples_of_process), training.eval_batch_size):
        samples = samples_of_process[first : first + training.eval_batch_size]
        chosen = [numbers[sample] for sample in samples]
        batch = rows[chosen]
        totals[0] += sum(batch["num_bytes"])
        if is_encoder:
            totals[1] += _encoder_nats(model, batch["input_ids"], samples, num_rows)
        else:
            totals[1:] += _decoder_nats(model, batch, chosen)
    num_bytes, *nats = torch.tensor(gather_object([totals.tolist()]), dtype=torch.float64).sum(dim=0).tolist()
    if not math.isfinite(sum(nats)):
        raise FloatingPointError("Held-out bits per byte must be finite. Start a new run with a lower `learning_rate`.")
    return {
        **{kind: total / num_bytes / math.log(2) for kind, total in zip(kinds, nats, strict=True)},
        "sequences": num_rows,
        "bytes": int(num_bytes),
        "seconds": round(time.perf_counter() - started, 2),
    }


def _decoder_nats(model: AOGPTForAnyOrderLM, rows: dict[str, list], numbers: list[int]) -> torch.Tensor:
    """Return the sum of the nats of all tokens left to right, and in random orders drawn from the seeds `numbers`.

    In examples, these are the nats of the answers, given the context.
    """
    has_examples = "in_turns" in rows
    columns = rows if has_examples else {"input_ids": rows["input_ids"]}  # no labels: marked context is scored, too
    columns = columns | {"order_seed": numbers}
    features = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    nats = []
    for orders in ("gaps_last", "context_first") if has_examples else ("left_to_right", "random"):
        collator = DataCollatorForAnyOrderLM(orders, pad_token_id=0, left_to_right_fraction=0.0, seed=ORDER_SEED)
        batch = collator(features)
        if not has_examples:
            batch = keep_first_tokens(batch, model.config.start_token_id)
        batch = {name: values.to(model.device) for name, values in batch.items()}
        scores = model.log_likelihood(batch["input_ids"], batch["orders"], attention_mask=batch.get("attention_mask"))
        nats.append(-scores.token_log_likelihood[batch["labels"] != -100].double().sum().cpu())
    return torch.stack(nats)


def _encoder_nats(model: MDMEncoderForMaskedLM, sequences: list[list[int]], samples: range, num_rows: int) -> float:
    """Return an unbiased estimate of the bound (Eq. 7) on the negative log-likelihood of `sequences`, in nats.

    The diffusion times are stratified over all `num_rows` sequences of the evaluation, of which `samples` are indices.
    """
    draws = TrainingArguments(seed=ORDER_SEED, batch_size=num_rows, left_to_right_fraction=0.0)
    features = [{"input_ids": ids, "order_seed": sample} for ids, sample in zip(sequences, samples, strict=True)]
    batch = MaskDraws(draws)(features)
    loss = MaskedDiffusionObjective(model)(**{name: values.to(model.device) for name, values in batch.items()})
    return loss.item() * batch["input_ids"].numel()


def write_samples(
    model: Model, tokenizer: PreTrainedTokenizerBase, count: int, length: int, path: Path, training: TrainingArguments
) -> None:
    """Generate `count` texts of `length` tokens in orders of the training, and write them to a file.

    With `orders=gaps_last`, they are generated from left to right, because a text without given tokens is a single gap.
    """
    generator = torch.Generator(model.device).manual_seed(SAMPLE_SEED)
    if training.orders == "shared":
        collator = DataCollatorForAnyOrderLM(**order_settings(training), left_to_right_fraction=0.0, seed=training.seed)
        settings = {"order": collator([{"input_ids": [0] * length}] * count)["orders"]}
    else:
        order = "left_to_right" if training.orders in LEFT_TO_RIGHT_ORDERS else "random"
        settings = {"order": order, "block_length": training.block_length, "stride": training.stride}
    sequences = model.generate(
        num_return_sequences=count, max_length=length, stop_at_eos=False, generator=generator, **settings
    )
    texts = [decode(ids, tokenizer) for ids in sequences.tolist()]
    write_text(path, SEPARATOR.join(texts) + "\n")


def read_samples(path: Path) -> list[str]:
    """Return the texts in a file that `write_samples` wrote, or an empty list if there is no such file."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split(SEPARATOR) if path.exists() else []
