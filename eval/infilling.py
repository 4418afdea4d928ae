# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Infilling of held-out text: exact matches and bits per byte, for gaps of known and of unknown length.

    python eval/infilling.py RUN [RUN ...] [--num_documents N] [--max_gap N] [--output_dir DIR]

RUN is the folder of a finished run of training/pretrain.py, of a decoder or an encoder, on any corpus. In each held-out
document (or, for packed text, in each sequence), the model fills in a gap, which is a random span of tokens or, with
--sentences, a whole sentence. The command writes results.json and report.md to --output_dir, and prints report.md.
"""

import random
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.data import evenly_spaced, load_data_of_run
from common.files import make_folder, write_json, write_text
from common.hardware import default_device, versions
from common.reports import markdown_table, with_error
from common.results import check_is_no_run, read_finished_run
from common.tokenizers import num_unpadded, to_bytes
from eval.estimates import ratio_with_error, wilson_interval
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.tokenization import load_tokenizer

BEFORE = "only the text before, known length"
# A sentence ends at the end of its line, or with one of .!? before whitespace. It includes the spaces before it.
SENTENCE = re.compile(rb"[ \t]*\S(?:[^\n]*?[.!?][\"')\]]*(?=\s)|[^\n]*)")

SUMMARY = """# Infilling

The model fills in one gap in each of several documents, which are evenly spaced in the held-out text. In packed text, a
document is a sequence without its last {max_length} tokens, so that longer infills fit, too. A gap is {gap}.
Each step fills in one position with its likeliest token. It is the position of which the model is most certain or, if
the model was trained with `orders: gaps_last`, the first one. "Only the text before" means that the model fills in the
gap from left to right, without the text after it.

"Length by the whole text" means that the length of the gap is not given, and `infill` chooses one from 1 to
{max_length}: the length with which the filled-in text has the highest likelihood from left to right.

Bits per byte are computed for the removed tokens, predicted from left to right, given the text around the gap
or only the text before it. The bytes of all tokens count, even if a gap cuts a character. End-of-text
is one byte. A match is exact if the gap is filled in with the same bytes.

Intervals in brackets are 95 % confidence intervals (Wilson) over the gaps. Values after ± are standard errors.

{table}
"""


@dataclass
class InfillingArguments(Options):
    """Options of eval/infilling.py."""

    num_documents: int = option(300, "Largest number of held-out documents to use.", least=1)
    max_gap: int = option(4, "Largest number of tokens to remove from a document.", least=1)
    sentences: bool = option(
        False, "Remove whole sentences of at most `max_gap` tokens. A sentence also ends at the end of its line."
    )
    max_length: int = option(8, "Largest length that is tried for a gap of unknown length.", least=1)
    seed: int = option(0, "Seed of the gaps.")
    output_dir: Path = option(Path("runs/infilling"), "Folder for results.json and report.md.")


@dataclass
class Gap:
    """
    A document with a gap.

    Attributes:
        ids: Token ids of the original document, without padding.
        start: Position of the first token to remove.
        length: Number of tokens to remove.
    """

    ids: list[int]
    start: int
    length: int

    @property
    def removed(self) -> list[int]:
        """Return the removed tokens."""
        return self.ids[self.start : self.start + self.length]

    def with_tokens(self, tokens: list[int]) -> list[int]:
        """Return the document with other tokens in the gap."""
        return [*self.ids[: self.start], *tokens, *self.ids[self.start + self.length :]]


def make_gaps(documents: list[list[int]], count: int, max_gap: int, seed: int, may_be_last: bool = True) -> list[Gap]:
    """
    Draw gaps in `count` evenly spaced documents of at least two tokens, or in all of them if there are fewer.

    In each document, at least one token remains. Unless `may_be_last`, there is a token after each gap, because without
    padding, nothing shows the length of a gap at the end.

    Raises:
        ValueError: If no document has two tokens.
    """
    rng, gaps = random.Random(seed), []
    usable = [ids for ids in documents if len(ids) > 1]
    if not usable:
        raise ValueError("No held-out document has two tokens or more. Use a run with longer documents.")
    for ids in (usable[number] for number in evenly_spaced(len(usable), count)):
        length = rng.randint(1, min(max_gap, len(ids) - 1))
        gaps.append(Gap(ids, rng.randint(0, len(ids) - length - (not may_be_last)), length))
    return gaps


def make_sentence_gaps(
    documents: list[list[int]], count: int, max_gap: int, seed: int, tokenizer: PreTrainedTokenizerBase
) -> list[Gap]:
    """
    Draw sentences as gaps, in `count` evenly spaced documents with sentences of at most `max_gap` tokens.

    If there are fewer such documents, all of them are used. The first and the last sentence of a document are never
    gaps, because packing may have cut them.

    Raises:
        ValueError: If no document has such a sentence.
    """
    rng = random.Random(seed)
    found = [(ids, spans) for ids in documents if (spans := find_sentences(ids, max_gap, tokenizer))]
    if not found:
        raise ValueError(
            f"No held-out document has a sentence of at most {max_gap} tokens between two other sentences or lines. "
            "Increase `max_gap`, or leave out `sentences`."
        )
    chosen = (found[number] for number in evenly_spaced(len(found), count))
    return [Gap(ids, *rng.choice(spans)) for ids, spans in chosen]


def find_sentences(ids: list[int], max_gap: int, tokenizer: PreTrainedTokenizerBase) -> list[tuple[int, int]]:
    """
    Return (start, length) in tokens for each sentence of at most `max_gap` tokens, without the first and the last one.

    A token that is only partly in a sentence is not part of it. Sentences without whole tokens are left out.
    """
    pieces = [b"\n" if token == tokenizer.eos_token_id else to_bytes([token], tokenizer) for token in ids]
    ends = list(accumulate(map(len, pieces)))
    spans = []
    for sentence in list(SENTENCE.finditer(b"".join(pieces)))[1:-1]:
        first, after = bisect_left([0, *ends], sentence.start()), bisect_right(ends, sentence.end())
        if 0 < after - first <= max_gap:
            spans.append((first, after - first))
    return spans


class Filler:
    """
    Methods that fill in gaps with a model.

    Args:
        model: The model.
        padded_length: Length to which documents are padded with end-of-text, or None for packed text.
        max_length: Largest length that is tried for a gap of unknown length.
        orders: Orders in which the model was trained (`TrainingArguments.orders`).
    """

    def __init__(self, model: Model, padded_length: int | None, max_length: int, orders: str = "random") -> None:
        self.model, self.padded_length, self.max_length, self.orders = model, padded_length, max_length, orders
        self.order = "left_to_right" if orders == "gaps_last" else "confidence"
        # A padded document has no end-of-text before its padding. In packed text, a gap can contain end-of-text.
        eos = model.config.eos_token_id
        self.end_of_text = eos if isinstance(eos, list) else [eos]  # the first one is the padding, as in `infill`
        self.settings = {"do_sample": False, "suppress_tokens": None if padded_length is None else self.end_of_text}

    def methods(self) -> dict[str, Callable[[Gap], list[int]]]:
        """Return, by name, the functions that fill in a gap."""
        if self.orders == "left_to_right":
            return {BEFORE: self.from_text_before}
        methods = {"known length": self.with_known_length}
        if hasattr(self.model, "infill"):  # a decoder
            methods |= {"length by the whole text": self.by_whole_text, BEFORE: self.from_text_before}
        return methods

    def with_known_length(self, gap: Gap) -> list[int]:
        """Fill in as many tokens as were removed."""
        ids = self.pad(gap.with_tokens([self.model.config.mask_token_id] * gap.length))[None]
        filled = self.model.generate(ids, order=self.order, **self.settings)
        return filled[0, gap.start : gap.start + gap.length].tolist()

    def from_text_before(self, gap: Gap) -> list[int]:
        """Fill in as many tokens as were removed, from left to right, without the text after the gap."""
        ids = self._to_tensor(gap.ids[: gap.start] + [self.model.config.mask_token_id] * gap.length)[None]
        # Packed text continues after end-of-text, so generation must not stop there.
        filled = self.model.generate(ids, order="left_to_right", stop_at_eos=False, **self.settings)
        return filled[0, gap.start :].tolist()

    def by_whole_text(self, gap: Gap) -> list[int]:
        """Choose the length with the likeliest whole text, as `infill` does. Return the tokens filled in."""
        ids = self._to_tensor(gap.with_tokens([self.model.config.mask_token_id]))
        lengths = range(1, self.max_length + 1)
        output = self.model.infill(ids, lengths, self.padded_length, order=self.order, do_sample=False)
        return output.sequences[0, gap.start : gap.start + int(output.lengths)].tolist()

    def pad(self, ids: list[int]) -> torch.LongTensor:
        """Return the ids of a document, padded to `padded_length`."""
        return self._to_tensor(ids + self.end_of_text[:1] * ((self.padded_length or 0) - len(ids)))

    def _to_tensor(self, ids: list[int]) -> torch.LongTensor:
        """Return token ids as a tensor on the device of the model."""
        return torch.tensor(ids).to(self.model.device)

    def nats(self, gap: Gap, only_before: bool) -> float:
        """Return the negative log-likelihood of the removed tokens, given the text around or only before them."""
        ids = self.pad(gap.ids)[None]
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        is_target = (positions >= gap.start) & (positions < gap.start + gap.length)
        context = positions < gap.start if only_before else ~is_target
        scores = self.model.conditional_log_likelihood(ids, is_target, context, orders="left_to_right")
        return -scores.log_likelihood.item()


def evaluate(filler: Filler, gaps: list[Gap], tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, Any]]:
    """
    Return, for each method, the fraction of exact matches and, for gaps of known length, bits per byte.

    For methods that choose the length, the result has the fraction of right lengths instead of bits per byte. A match
    is exact if its tokens have the same bytes as the removed tokens. The tokens themselves may differ. Fractions have
    95 % confidence intervals. Bits per byte have standard errors.
    """
    end_of_text = tokenizer.eos_token_id
    num_bytes = [
        sum(1 if token == end_of_text else len(to_bytes([token], tokenizer)) for token in gap.removed) for gap in gaps
    ]
    results = {}
    for name, fill in filler.methods().items():
        fillings = [(gap, fill(gap)) for gap in progress_bar(gaps, desc=name, leave=False)]
        results[name] = {"gaps": len(gaps)} | _fraction(
            "exact", [to_bytes(ids, tokenizer) == to_bytes(gap.removed, tokenizer) for gap, ids in fillings]
        )
        if "known length" in name:
            bits = [filler.nats(gap, only_before=name == BEFORE) / np.log(2) for gap in gaps]
            ratio, error = ratio_with_error(np.array(bits), np.array(num_bytes))
            results[name] |= {"bits_per_byte": ratio, "bits_per_byte_standard_error": error}
        else:
            results[name] |= _fraction("length", [len(ids) == gap.length for gap, ids in fillings])
    return results


def _fraction(key: str, is_right: list[bool]) -> dict[str, Any]:
    """Return the fraction of true values, with its confidence interval."""
    fraction = fmean(is_right)
    return {key: fraction, f"{key}_interval": wilson_interval(fraction, len(is_right))}


def held_out_gaps(folder: Path, options: InfillingArguments) -> list[Gap]:
    """Return gaps in the held-out text of a finished run."""
    data = load_data_of_run(folder)
    tokenizer, length = data.tokenizer, data.arguments.sequence_length
    rows, is_padded = data.validation["input_ids"], data.arguments.packing == "documents"
    # In packed text, gaps with all lengths to try must fit into a sequence. In padded text, others are not tried.
    room = length if is_padded else length - options.max_length
    if room <= options.max_gap:
        raise ValueError(
            f"`max_length` is {options.max_length}, so only {room} of the {length} tokens of a sequence of {folder} "
            f"would be left for the text, but a gap of `max_gap` ({options.max_gap}) tokens needs more. Decrease "
            "`max_length` or `max_gap`."
        )
    documents = [list(ids[: num_unpadded(ids, tokenizer.eos_token_id)][:room]) for ids in rows]
    drawn = documents, options.num_documents, options.max_gap, options.seed
    return make_sentence_gaps(*drawn, tokenizer) if options.sentences else make_gaps(*drawn, may_be_last=is_padded)


def evaluate_run(folder: Path, gaps: list[Gap], options: InfillingArguments) -> dict[str, dict[str, Any]]:
    """Return the scores of each method, by name, for the model of a finished run."""
    settings = read_finished_run(folder)["arguments"]
    model = load_model(folder / "model", dtype=torch.float32).to(default_device())
    tokenizer = load_tokenizer(folder / "model")
    padded_length = settings["sequence_length"] if settings["packing"] == "documents" else None
    filler = Filler(model, padded_length, options.max_length, settings["orders"])
    return evaluate(filler, gaps, tokenizer)


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    rows = [
        (
            run,
            name,
            str(scores["gaps"]),
            *(
                "{:.1%} ({:.1%} to {:.1%})".format(scores[key], *scores[f"{key}_interval"]) if key in scores else ""
                for key in ("length", "exact")
            ),
            with_error(scores["bits_per_byte"], scores["bits_per_byte_standard_error"], 3)
            if "bits_per_byte" in scores
            else "",
        )
        for run, methods in results["runs"].items()
        for name, scores in methods.items()
    ]
    header = ["run", "gap filled in with", "gaps", "right length", "exact match", "bits per byte"]
    gap = "a whole sentence or line of at most" if results["sentences"] else "a span of 1 to"
    table = markdown_table(header, rows, align="llrrrr")
    return SUMMARY.format(max_length=results["max_length"], gap=f"{gap} {results['max_gap']} tokens", table=table)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(InfillingArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs.")
    options, others = parser.parse(argv)
    if options.max_length < options.max_gap:
        raise ValueError(
            f"`max_length` ({options.max_length}) must be at least `max_gap` ({options.max_gap}), because the right "
            "length of every gap must be tried. Increase `max_length`."
        )
    check_is_no_run(options.output_dir)
    with make_folder(options.output_dir):  # first, so that a wrong folder is an error before the long measurements
        gaps = [held_out_gaps(folder, options) for folder in others.runs]
        for folder, other in zip(others.runs, gaps, strict=True):
            if other != gaps[0]:
                raise ValueError(
                    f"All runs must have the same gaps, but those of {folder} differ from those of {others.runs[0]}. "
                    "Use runs with the same held-out text, tokenizer and sequence length."
                )
        runs = {str(folder): evaluate_run(folder, gaps[0], options) for folder in others.runs}
    results = {
        "command": command_line(__file__, argv),
        **{name: getattr(options, name) for name in ("num_documents", "max_gap", "sentences", "max_length", "seed")},
        "runs": runs,
        "versions": versions(),
    }
    report = make_report(results)
    write_json(options.output_dir / "results.json", results)
    write_text(options.output_dir / "report.md", report)
    print(report, f"Written: {options.output_dir} (results.json, report.md).", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
