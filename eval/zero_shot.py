# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Perplexity and bits per byte of a model on text that it was not trained on, left to right and in random orders.

    python eval/zero_shot.py MODEL --text-file FILE [...]

All text is scored: each document with an end-of-text, which counts as one byte (the newline that ends a line). Bits per
byte assume a tokenizer that gives back the text it was given, as byte-level BPE does.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset
from tqdm import tqdm
from transformers import HfArgumentParser, PreTrainedTokenizerBase

from modeling_aogpt import AOGPTForAnyOrderLM, DataCollatorForAnyOrderLM
from training.corpora import keep_text, load_files
from training.data import cut, encode_documents, fill, option
from training.files import whole_file
from training.tokenization import load_tokenizer, vocabulary_arguments


@dataclass
class ScoringArguments:
    """What to score, and how."""

    text_file: list[str] = field(metadata={"help": "Text, JSONL or Parquet files or patterns, also as .xz or .gz."})
    text_column: str = option("text", "Column of the documents, in anything but plain text.")
    sample_by: Literal["line", "paragraph", "document"] = option(
        "line", "A document of plain text; `document`: a file."
    )
    packing: Literal["packed", "documents"] = option(
        "packed",
        "packed: documents end to end, cut into sequences. documents: one per sequence, filled up with end-of-text, "
        "for models that were trained so.",
    )
    sequence_length: int | None = option(None, "Tokens of a sequence; unless given, as many as the model takes.")
    tokenizer: str | None = option(None, "Name or folder of the tokenizer; unless given, that of the model.")
    num_orders: int = option(1, "Random orders per sequence.")
    seed: int = option(0, "Of the random orders.")
    batch_size: int = option(16, "Sequences per forward pass.")
    mixed_precision: Literal["no", "bf16"] = option("no", "no: float32. bf16: autocast to bfloat16.")
    output: str | None = option(None, "JSON file for the figures.")


def zero_shot(model_name: str, arguments: ScoringArguments) -> dict[str, Any]:
    """Scores the files; returns what is printed and written, plain numbers and strings.

    Raises:
        ValueError: for a missing or empty file, a tokenizer that is not the model's, a sequence longer than the model
            takes, or, with `packing="documents"`, a document longer than a sequence.
    """
    for name in ("num_orders", "batch_size"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"{name} is {getattr(arguments, name)}; it must be at least 1.")
    texts = keep_text(load_files(arguments.text_file, arguments.sample_by), arguments.text_column)
    device = PartialState().device
    model = AOGPTForAnyOrderLM.from_pretrained(model_name).to(device).eval()
    tokenizer = load_tokenizer(arguments.tokenizer or model_name)
    num_valid = vocabulary_arguments(tokenizer)["num_valid_tokens"]
    if num_valid != model.config.num_valid_tokens:
        raise ValueError(
            f"The tokenizer {arguments.tokenizer or model_name!r} has {num_valid} ids, the model "
            f"{model.config.num_valid_tokens}; name the one the model was trained with (--tokenizer)."
        )
    longest = model.config.max_position_embeddings
    length = longest if arguments.sequence_length is None else arguments.sequence_length
    if not 1 <= length <= longest:
        raise ValueError(f"sequence_length is {length}; this model takes 1 to {longest} (its max_position_embeddings).")
    rows = make_rows(texts, tokenizer, arguments.packing, length)
    with torch.autocast(device.type, torch.bfloat16, enabled=arguments.mixed_precision == "bf16"):
        nats = score(model, rows, arguments.num_orders, arguments.seed, arguments.batch_size)
    num_tokens, num_bytes = (np.array([row[key] for row in rows]) for key in ("num_tokens", "num_bytes"))
    return {
        "model": model_name,
        "text_files": arguments.text_file,
        "packing": arguments.packing,
        "sequence_length": length,
        "mixed_precision": arguments.mixed_precision,
        "documents": len(texts),
        "sequences": len(rows),
        "tokens": int(num_tokens.sum()),
        "bytes": int(num_bytes.sum()),
        "left_to_right": figures(nats["left_to_right"], num_tokens, num_bytes),
        "any_order": figures(nats["any_order"], num_tokens, num_bytes)
        | {"num_orders": arguments.num_orders, "seed": arguments.seed},
    }


def make_rows(texts: Dataset, tokenizer: PreTrainedTokenizerBase, packing: str, length: int) -> list[dict[str, Any]]:
    """Sequences of `length` ids (packed: the last one may be shorter), with the tokens and bytes of their text."""
    documents = encode_documents(texts, tokenizer, with_token_bytes=True)
    if packing == "packed":
        return [row | {"num_tokens": len(row["input_ids"])} for row in cut(documents, length)]
    return fill(documents, length, tokenizer.eos_token_id, "given")[0].to_list()


def score(
    model: AOGPTForAnyOrderLM, rows: list[dict[str, Any]], num_orders: int, seed: int, batch_size: int
) -> dict[str, np.ndarray]:
    """Negative log-likelihood of each row in nats: left to right, and the mean over `num_orders` random orders.

    The orders of a row depend on `seed` and the row's number alone, not on the batch.
    """
    collator = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0, seed=seed)
    nats = {"left_to_right": np.zeros(len(rows)), "any_order": np.zeros(len(rows))}
    starts = range(0, len(rows), batch_size)
    with tqdm(total=len(starts) * (num_orders + 1), unit="pass", mininterval=progress_interval()) as bar:
        for start in starts:
            chosen = slice(start, start + batch_size)
            for number in range(num_orders):
                numbered = enumerate(rows[chosen], start)
                batch = collator([row | {"order_seed": index * num_orders + number} for index, row in numbered])
                nats["any_order"][chosen] += negative_log_likelihood(model, batch, batch["orders"]) / num_orders
                bar.update()
            nats["left_to_right"][chosen] = negative_log_likelihood(model, batch, "left_to_right")
            bar.update()
    return nats


def progress_interval() -> float:
    """Seconds between updates of a progress bar: few where it goes into a file."""
    return 0.5 if sys.stderr.isatty() else 30


def negative_log_likelihood(
    model: AOGPTForAnyOrderLM, batch: dict[str, torch.Tensor], orders: torch.Tensor | str
) -> np.ndarray:
    batch = {name: values.to(model.device) for name, values in batch.items()}
    if not isinstance(orders, str):
        orders = orders.to(model.device)
    scores = model.log_likelihood(batch["input_ids"], orders=orders, attention_mask=batch.get("attention_mask"))
    return -scores.log_likelihood.cpu().numpy()


def figures(nats: np.ndarray, num_tokens: np.ndarray, num_bytes: np.ndarray) -> dict[str, float | None]:
    """Perplexity per token and bits per byte of all rows together, each with its standard error (None for one row)."""
    per_token, token_error = ratio(nats, num_tokens)
    per_byte, byte_error = ratio(nats, num_bytes)
    perplexity = math.exp(per_token)
    return {
        "perplexity": perplexity,
        "perplexity_standard_error": token_error and perplexity * token_error,
        "bits_per_byte": per_byte / math.log(2),
        "bits_per_byte_standard_error": byte_error and byte_error / math.log(2),
    }


def ratio(values: np.ndarray, sizes: np.ndarray) -> tuple[float, float | None]:
    """sum(values) / sum(sizes), and its standard error over rows (to first order; rows taken as independent)."""
    quotient = values.sum() / sizes.sum()
    if len(values) == 1:
        return float(quotient), None
    spread = ((values - quotient * sizes) ** 2).sum() * len(values) / (len(values) - 1)
    return float(quotient), float(spread**0.5 / sizes.sum())


def report(results: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{results['documents']} documents, {results['tokens']} tokens, {results['bytes']} bytes, as "
        f"{results['sequences']} sequences of at most {results['sequence_length']} tokens ({results['packing']}); "
        f"random orders per sequence: {results['any_order']['num_orders']}"
    )
    yield f"{'':<16}{'perplexity':<26}{'bits per byte':<26}".rstrip()
    for key, name in (("left_to_right", "left to right"), ("any_order", "any order")):
        cells = [f"{name:<16}"]
        for figure, digits in (("perplexity", 2), ("bits_per_byte", 4)):
            value, error = results[key][figure], results[key][f"{figure}_standard_error"]
            cells.append(f"{value:.{digits}f} ± {'unknown' if error is None else f'{error:.{digits}f}'}".ljust(26))
        yield "".join(cells).rstrip()


def main(argv: list[str]) -> None:
    parser = HfArgumentParser(ScoringArguments, allow_abbrev=False)
    parser.add_argument("model", help="Folder or Hub name of the model.")
    arguments, others = parser.parse_args_into_dataclasses(argv)
    results = zero_shot(others.model, arguments)
    print(*report(results), sep="\n")
    if arguments.output is not None:
        with whole_file(Path(arguments.output)) as temporary:
            temporary.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
