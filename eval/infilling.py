# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Infilling of held-out text or of a file: exact matches and bits per byte, for gaps of known and of unknown length.

    python eval/infilling.py RUN [RUN ...] [--num_documents N] [--max_gap N] [--output_dir DIR]
    python eval/infilling.py MODEL [MODEL ...] --file HumanEval-SingleLineInfilling.jsonl.gz --max_length 32
    accelerate launch eval/infilling.py ...

RUN is the folder of a finished run of training/pretrain.py, of a decoder or an encoder, on any corpus. In each held-out
document (or, for packed text, in each sequence), the model fills in a gap, which is a random span of tokens or, with
--sentences, a whole sentence. With --file, MODEL (a folder or Hub name) fills in the gaps of a file in the format of
OpenAI's human-eval-infilling. The command writes results.json, report.md and, with --file, samples/ (JSON lines for the
checker of the benchmark) to --output_dir, and prints report.md. If a run was stopped, the same command continues it.
"""

import json
import random
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from aogpt.texts import cut_around, decode_after, lacks_space
from common.commands import Options, Parser, command_line, one_line_errors, option
from common.data import evenly_spaced, load_data_of_run
from common.examples import encode_example
from common.files import make_folder, write_json, write_text
from common.hardware import versions
from common.models import identity_of_configs, identity_of_weights
from common.processes import in_turn, start_accelerator
from common.reports import markdown_table
from common.results import check_is_no_run, default_length, settings_of_run
from common.text_files import read_lines
from common.tokenizers import num_unpadded, to_bytes
from eval.estimates import bits_per_byte_over, wilson_interval
from eval.journal import Journal, name_by_content
from eval.tables import show_metric
from modeling_aogpt.configuration_aogpt import as_list
from modeling_aogpt.generation_config import AnyOrderGenerationConfig
from modeling_aogpt.loading import Model, find_model, load_model, read_config
from modeling_aogpt.tokenization import load_matching_tokenizer, load_tokenizer

BEFORE = "only the text before, known length"
WHOLE_TEXT, PREDICTED = "length by the whole text", "length predicted by the model"
# A sentence ends at the end of its line, or with one of .!? before whitespace. It includes the spaces before it.
SENTENCE = re.compile(rb"[ \t]*\S(?:[^\n]*?[.!?][\"')\]]*(?=\s)|[^\n]*)")
SEPARATOR = re.compile(r"[^\w.-]+")
# For each method, the tokens that it filled in each gap, and the negative log-likelihood of the removed tokens.
Fillings = dict[str, list[tuple[list[int], float | None]]]

TEMPLATE = Path(__file__).with_name("infilling_report.md")  # of report.md
HELD_OUT = """The model fills in one gap in each of several documents, which are evenly spaced in the held-out text. In
packed text, a document is a sequence without its last {max_length} tokens, so that longer infills fit, too.
A gap is {gap}."""
FROM_FILE = "The model fills in the gap of each row of {file}. Text that does not fit into the model is cut."
PARTS = {"prefix": "prompt", "suffix": "suffix", "middle": "canonical_solution"}  # columns of human-eval-infilling


@dataclass
class InfillingArguments(Options):
    """Options of eval/infilling.py."""

    file: str | None = option(None, "JSONL file with gaps to fill in, instead of held-out text. It may be compressed.")
    num_documents: int = option(300, "Largest number of held-out documents to use.", least=1)
    max_gap: int = option(4, "Largest number of tokens to remove from a document.", least=1)
    sentences: bool = option(
        False, "Remove whole sentences of at most `max_gap` tokens. A sentence also ends at the end of its line."
    )
    max_length: int = option(8, "Largest length that is tried for a gap of unknown length.", least=1)
    seed: int = option(0, "Seed of the gaps.")
    output_dir: Path | None = option(
        None, "Folder for results.json and report.md. Defaults to a new folder in runs/infilling/."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_documents", "max_gap", "sentences", "seed"):
            if self.file and getattr(self, name) != getattr(InfillingArguments, name):
                raise ValueError(f"`{name}` has no effect with `file`. Remove one of them.")
        if not self.file and self.max_length < self.max_gap:
            raise ValueError(
                f"`max_length` ({self.max_length}) must be at least `max_gap` ({self.max_gap}), because the right "
                "length of every gap must be tried. Increase `max_length`."
            )


@dataclass
class Gap:
    """A document with a gap."""

    ids: list[int]  # of the original document, without padding
    start: int  # position of the first token to remove
    length: int  # number of tokens to remove
    task_id: str = ""  # name of the row in a file
    has_space: bool = False  # whether the tokens before the gap lack the last space of the text before it
    is_cut: bool = False  # whether text around the gap was cut to fit into the model

    @property
    def removed(self) -> list[int]:
        """Return the removed tokens."""
        return self.ids[self.start : self.start + self.length]

    def with_tokens(self, tokens: list[int]) -> list[int]:
        """Return the document with other tokens in the gap."""
        return [*self.ids[: self.start], *tokens, *self.ids[self.start + self.length :]]


def make_gaps(documents: list[list[int]], count: int, max_gap: int, seed: int, may_be_last: bool = True) -> list[Gap]:
    """Draw gaps in `count` evenly spaced documents of at least two tokens, or in all of them if there are fewer.

    In each document, at least one token remains. Unless `may_be_last`, there is a token after each gap, because without
    padding, nothing shows the length of a gap at the end. Raise a `ValueError` if no document has two tokens.
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
    """Draw sentences as gaps, in `count` evenly spaced documents with sentences of at most `max_gap` tokens.

    If there are fewer such documents, all of them are used; if there are none, a `ValueError` is raised. The first and
    the last sentence of a document are never gaps, because packing may have cut them.
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
    """Return (start, length), in tokens, of each sentence of at most `max_gap` tokens, without the first and the last.

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


def gaps_of_file(folder: Path, options: InfillingArguments) -> list[Gap]:
    """Return the gaps of a JSONL file, with as much text around them as fits into the model in `folder`.

    Raise a `ValueError` if a row cannot be used, or if there is no row.
    """
    name, gaps = find_model(folder), []
    config = read_config(name)
    tokenizer, longest = load_matching_tokenizer(config, name), default_length(name, config)
    for number, line in read_lines(options.file):
        try:
            row = json.loads(line)
            parts = {part: row.get(column, row.get(part)) for part, column in PARTS.items()}
            example = encode_example(json.dumps(parts), tokenizer, None)
            ids, is_gap = example["input_ids"], [label != -100 for label in example["labels"]]
            start, length = is_gap.index(True), sum(is_gap)
            if (room := longest - max(length, options.max_length)) < 1:
                raise ValueError(f"A gap of {longest - room} tokens leaves no room for text in {longest} positions.")
        except (ValueError, AttributeError) as error:
            raise ValueError(
                f"Row {number} of {options.file} cannot be used: {error.args[-1]} A row needs `task_id`, `prompt`, "
                "`suffix` and `canonical_solution`, or `prefix`, `suffix` and `middle`."
            ) from error
        # A text that ends with a gap needs end-of-text, which shows how long the gap is.
        rest = ids[start + length :] or [tokenizer.eos_token_id]
        before, after = cut_around(ids[:start], rest, room)
        facts = {"task_id": row.get("task_id", number), "has_space": lacks_space(before, parts["prefix"], tokenizer)}
        facts["is_cut"] = start + len(rest) > room
        gaps.append(Gap([*before, *ids[start : start + length], *after], len(before), length, **facts))
    if not gaps:
        raise ValueError(f"{options.file} is empty. Use a file with rows.")
    return gaps


class Filler:
    """Methods that fill in gaps with a model.

    Args:
        model: The model.
        padded_length: Length to which documents are padded with end-of-text, or None for packed text.
        max_length: Largest length that is tried for a gap of unknown length.
        orders: Orders in which the model was trained (`TrainingArguments.orders`).
    """

    def __init__(self, model: Model, padded_length: int | None, max_length: int, orders: str = "random") -> None:
        self.model, self.padded_length, self.orders = model, padded_length, orders
        self.predicts_end = model.config.max_gap_length is not None
        self.max_length = min(max_length, model.config.max_gap_length or max_length)  # also for the scores
        self.order = "left_to_right" if orders == "gaps_last" else "confidence"
        # A padded document has no end-of-text before its padding. In packed text, a gap can contain end-of-text.
        self.end_of_text = as_list(model.config.eos_token_id)  # the first one is the padding, as in `infill`
        has_end = padded_length is not None or self.predicts_end
        suppressed = model.generation_config.suppress_tokens or []  # no other setting of the model is used
        config = AnyOrderGenerationConfig(do_sample=False, suppress_tokens=suppressed or None)
        self.greedy = {"generation_config": config}
        if has_end:
            suppressed = suppressed + self.end_of_text
        self.settings = {**self.greedy, "suppress_tokens": suppressed or None}

    @classmethod
    def of_model(cls, model: Model, name: str, max_length: int) -> "Filler":
        """Return a `Filler` with the settings of the run that trained the model `name`, if there is one."""
        settings = settings_of_run(name)
        padded_length = settings["sequence_length"] if settings.get("packing") == "documents" else None
        default = "gaps_last" if model.generation_config.order == "left_to_right" else "random"
        return cls(model, padded_length, max_length, settings.get("orders", default))

    def methods(self) -> dict[str, Callable[[Gap], list[int]]]:
        """Return, by name, the functions that fill in a gap."""
        if self.orders == "left_to_right":
            return {BEFORE: self.from_text_before}
        methods = {"known length": self.with_known_length}
        if hasattr(self.model, "infill"):  # a decoder
            name = PREDICTED if self.predicts_end else WHOLE_TEXT
            methods |= {name: self.with_unknown_length, BEFORE: self.from_text_before}
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

    def with_unknown_length(self, gap: Gap, max_length: int | None = None, **settings: Any) -> list[int]:
        """Let `infill` find the length. Return the tokens filled in."""
        ids = self._to_tensor(gap.with_tokens([self.model.config.mask_token_id]))
        settings = {"order": self.order, **self.greedy} | settings
        longest = min(max_length or self.max_length, self.max_length)
        output = self.model.infill(ids, range(1, longest + 1), self.padded_length, **settings)
        return output.sequences[0, gap.start : gap.start + int(output.lengths)].tolist()

    def pad(self, ids: list[int]) -> torch.LongTensor:
        """Return the ids of a document, padded to `padded_length`."""
        return self._to_tensor(ids + self.end_of_text[:1] * ((self.padded_length or 0) - len(ids)))

    def _to_tensor(self, ids: list[int]) -> torch.LongTensor:
        """Return token ids as a tensor on the device of the model."""
        return torch.tensor(ids).to(self.model.device)

    def nats(self, gap: Gap, only_before: bool) -> float:
        """Return the negative log-likelihood of the removed tokens, given the text around or only before them."""
        end = gap.start + gap.length
        return self._nats(self.pad(gap.ids), gap.start, end, None if only_before else end)

    def nats_with_end(self, gap: Gap) -> float:
        """Return the negative log-likelihood of the removed tokens and of the end of the gap, given the other text."""
        end, num_slots = gap.start + gap.length, max(self.max_length - gap.length, 0)
        ids = self.pad(gap.with_tokens(gap.removed + self.end_of_text[:1] * num_slots))
        return self._nats(ids, gap.start, end + (num_slots > 0), end + num_slots)

    def _nats(self, ids: torch.LongTensor, start: int, end: int, after: int | None) -> float:
        """Return -log p of `ids[start:end]`, given the ids before `start` and, if `after` is given, `ids[after:]`."""
        positions = torch.arange(len(ids), device=ids.device)[None]
        is_target = (positions >= start) & (positions < end)
        context = positions < start if after is None else (positions < start) | (positions >= after)
        scores = self.model.log_likelihood(ids[None], targets=is_target, context=context, orders="left_to_right")
        return -scores.log_likelihood.item()


def fill_in(filler: Filler, gaps: list[Gap], journal: Journal, name: str = "") -> Fillings:
    """Fill in each gap with each method, and score the removed tokens, unless `infill` compares lengths."""
    methods = {f"{name}/{method}": (method, fill) for method, fill in filler.methods().items()}

    def compute(key: str, indices: list[int]) -> list[tuple[list[int], float | None]]:
        (method, fill), gap = methods[key], gaps[indices[0]]
        if "known length" in method:
            return [(fill(gap), filler.nats(gap, method == BEFORE))]
        return [(fill(gap), None if method == WHOLE_TEXT else filler.nats_with_end(gap))]

    fillings = journal.complete(dict.fromkeys(methods, len(gaps)), 1, compute, desc=name or None, unit="gap")
    return {methods[key][0]: filled for key, filled in fillings.items()}


def evaluate(fillings: Fillings, gaps: list[Gap], tokenizer: PreTrainedTokenizerBase) -> dict[str, dict[str, Any]]:
    """Return, for each method, the fraction of exact matches, and bits per byte.

    For gaps of unknown length, the result also has the fraction of right lengths, and has no bits per byte if `infill`
    compares lengths. A match is exact if its tokens have the same bytes as the removed tokens. The tokens themselves
    may differ. Fractions have 95 % confidence intervals. Bits per byte have standard errors.
    """
    end_of_text = tokenizer.eos_token_id
    num_bytes = [
        sum(1 if token == end_of_text else len(to_bytes([token], tokenizer)) for token in gap.removed) for gap in gaps
    ]
    results = {}
    for name, filled in fillings.items():
        pairs = [(gap, ids) for gap, (ids, _) in zip(gaps, filled, strict=True)]
        results[name] = {"gaps": len(gaps), "cut": sum(gap.is_cut for gap in gaps)} | _fraction(
            "exact", [to_bytes(ids, tokenizer) == to_bytes(gap.removed, tokenizer) for gap, ids in pairs]
        )
        if name != WHOLE_TEXT:
            results[name] |= bits_per_byte_over(np.array([nats for _, nats in filled]), np.array(num_bytes))
        if "known length" not in name:
            results[name] |= _fraction("length", [len(ids) == gap.length for gap, ids in pairs])
    return results


def write_samples(fillings: Fillings, gaps: list[Gap], tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a JSONL file with the texts of each method, which the checker of human-eval-infilling can read."""
    for method, filled in fillings.items():
        lines = []
        for gap, (ids, _) in zip(gaps, filled, strict=True):
            text = decode_after(gap.ids[: gap.start], ids, tokenizer, gap.has_space)
            lines.append(json.dumps({"task_id": gap.task_id, "completion": text}) + "\n")
        write_text(folder / f"{SEPARATOR.sub('-', method)}.jsonl", "".join(lines))


def _fraction(key: str, is_right: list[bool]) -> dict[str, Any]:
    """Return the fraction of true values, with its confidence interval."""
    fraction = fmean(is_right)
    return {key: fraction, f"{key}_interval": wilson_interval(fraction, len(is_right))}


def held_out_gaps(folder: Path, options: InfillingArguments) -> list[Gap]:
    """Return gaps in the held-out text of a finished run."""
    data = load_data_of_run(folder)
    tokenizer, length = data.tokenizer, data.arguments.sequence_length
    rows, is_padded = data.validation["input_ids"], data.arguments.packing == "documents" and not data.has_examples
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


def _check_lossless(gaps: Sequence[Gap], tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise a `ValueError` if `to_bytes` does not return the text of a document."""
    for gap in gaps:
        text = tokenizer.decode(gap.ids, clean_up_tokenization_spaces=False).replace("\ufffd", "")
        if (found := to_bytes(gap.ids, tokenizer).decode(errors="ignore")).strip() != text.strip():
            changed = f"Bits per byte need a lossless tokenizer, but {name} makes {found!r:.200} of {text!r:.200}."
            raise ValueError(f"{changed} Use a model with byte-level BPE or the tokenizer of a Llama.")


def evaluate_run(folder: Path, gaps: list[Gap], options: InfillingArguments, journal: Journal) -> dict[str, Any]:
    """Return the scores of each method, by name, for a model or the model of a finished run."""
    name = find_model(folder)
    model, tokenizer = load_model(name, dtype=torch.float32).to(journal.state.device), load_tokenizer(name)
    _check_lossless(gaps, tokenizer, name)
    fillings = fill_in(Filler.of_model(model, name, options.max_length), gaps, journal, str(folder))
    if options.file and journal.state.is_main_process:
        samples = options.output_dir / "samples" / SEPARATOR.sub("--", str(folder)).strip("-")
        write_samples(fillings, gaps, tokenizer, samples)
    return evaluate(fillings, gaps, tokenizer)


def make_report(results: dict[str, Any]) -> str:
    """Return the report in Markdown."""
    rows = [
        (
            run,
            name,
            f"{scores['gaps']}" + (f" ({scores['cut']} with cut text)" if scores["cut"] else ""),
            *(
                "{:.1%} ({:.1%} to {:.1%})".format(scores[key], *scores[f"{key}_interval"]) if key in scores else ""
                for key in ("length", "exact")
            ),
            show_metric("bits_per_byte", 3)(scores),
        )
        for run, methods in results["runs"].items()
        for name, scores in methods.items()
    ]
    header = ["run", "gap filled in with", "gaps", "right length", "exact match", "bits per byte"]
    gap = "a whole sentence or line of at most" if results["sentences"] else "a span of 1 to"
    gaps = (FROM_FILE if results["file"] else HELD_OUT).format(**results, gap=f"{gap} {results['max_gap']} tokens")
    table = markdown_table(header, rows, align="llrrrr")
    return TEMPLATE.read_text(encoding="utf-8").format(**results, gaps=gaps, table=table)


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(InfillingArguments)
    parser.add_argument("runs", nargs="+", type=Path, help="Folders of finished runs or, with `file`, also of models.")
    options, others = parser.parse(argv)
    names = [find_model(folder) for folder in others.runs]
    weights = [identity_of_weights(name) for name in names]
    if options.output_dir is None:
        folder = Path("runs/infilling", others.runs[0].resolve().name)
        options.output_dir = name_by_content(folder, [asdict(options), names, weights])
    check_is_no_run(options.output_dir)
    accelerator = start_accelerator()
    with make_folder(options.output_dir):  # first, so that a wrong folder is an error before the long measurements
        with in_turn(accelerator):
            gaps = [(gaps_of_file if options.file else held_out_gaps)(folder, options) for folder in others.runs]
        gaps_by_run = dict(zip(others.runs, gaps, strict=True))
        for folder, other in gaps_by_run.items():
            if other != gaps[0] and not options.file:
                raise ValueError(
                    f"All runs must have the same gaps, but those of {folder} differ from those of {others.runs[0]}. "
                    "Use runs with the same held-out text, tokenizer and sequence length."
                )
        content = [options.max_length, *weights, *map(identity_of_configs, names)]
        content += [asdict(gap) for other in gaps for gap in other]
        journal = Journal(name_by_content(options.output_dir / ".unfinished", content))
        runs = {str(folder): evaluate_run(folder, own, options, journal) for folder, own in gaps_by_run.items()}
    settings = asdict(options)
    del settings["output_dir"]
    results = {"command": command_line(__file__, argv), **settings, "runs": runs, "versions": versions()}
    if accelerator.is_main_process:
        report = make_report(results)
        write_json(options.output_dir / "results.json", results)
        write_text(options.output_dir / "report.md", report)
        print(report, f"Written: {options.output_dir} (results.json, report.md).", sep="\n")
    journal.remove()


if __name__ == "__main__":
    main(sys.argv[1:])
