# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Infilling of gaps of unknown length by the models of room.yaml.

    python eval/studies/infilling/compare.py RUNS_DIR --output_dir DIR

RUNS_DIR is the folder of the finished runs, with a folder for each seed. The command measures each run once, and keeps
the results as infilling.json in the folder of the run. It writes compare.json and the report (see report.py) to DIR.
There are three kinds of gaps: lines, spans of 1 to 4 tokens, and both places of a name that occurs twice in a text.
"""

import math
import re
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from common.commands import Options, Parser, command_line, one_line_errors, option, progress_bar
from common.data import evenly_spaced, load_data_of_run
from common.files import make_folder, read_json, write_json
from common.hardware import versions
from common.results import read_finished_run
from common.tokenizers import to_bytes
from eval.infilling import Filler, Gap, InfillingArguments, held_out_gaps
from eval.studies.infilling.fill_in_the_middle import SENTINELS
from eval.studies.runner.estimates import estimate
from eval.studies.runner.report import write_report
from modeling_aogpt.loading import Model, load_model
from modeling_aogpt.tokenization import load_tokenizer

ARMS = ("fill-in-the-middle", "room", "room-long-stage", "gaps-last")
NAME = re.compile(rb"[A-Za-z_]{4,}")
LONGEST_NAME = 4  # tokens
NUM_TIMED = 10  # number of infills whose time is measured
MEASURED = "infilling.json"  # in the folder of a run


@dataclass
class CompareArguments(Options):
    """Options of eval/studies/infilling/compare.py."""

    num_documents: int = option(300, "Number of gaps of each kind.", least=1)
    output_dir: Path = option(Path("runs/room/results"), "Folder for compare.json and the report.")


@dataclass
class Pair:
    """A text in which both places of a name are missing. `gaps` contains (start, length) of each."""

    ids: list[int]
    gaps: list[tuple[int, int]]

    @property
    def removed(self) -> list[int]:
        """Return the tokens of the name, twice."""
        return [token for start, length in self.gaps for token in self.ids[start : start + length]]

    @property
    def parts(self) -> list[list[int]]:
        """Return the text before, between and after the gaps."""
        (first, length), (second, other) = self.gaps
        return [self.ids[:first], self.ids[first + length : second], self.ids[second + other :]]


class MiddleFiller(Filler):
    """Methods of a left-to-right model that fills in the middle. `sentinels` are the ids of `SENTINELS`."""

    def __init__(self, model: Model, max_length: int, sentinels: Sequence[int]) -> None:
        super().__init__(model, None, max_length, "left_to_right")
        self.sentinels = sentinels

    def in_the_middle(self, gap: Gap) -> list[int]:
        """Fill in at least one token, until end-of-text."""
        ids = torch.tensor([self.rearrange(gap)])
        settings = {"max_new_tokens": self.max_length, "min_new_tokens": 1, "suppress_tokens": self.sentinels}
        filled = self.model.generate(ids, order="left_to_right", **self.greedy, **settings)[0, ids.shape[1] :]
        return list(takewhile(lambda token: token not in self.end_of_text, filled.tolist()))

    def rearrange(self, gap: Gap) -> list[int]:
        """Return the text before and after a gap, with sentinels."""
        before, after, middle = self.sentinels
        return [before, *gap.ids[: gap.start], after, *gap.ids[gap.start + gap.length :], middle]

    def nats_with_end(self, gap: Gap) -> float:
        """Return the negative log-likelihood of the removed tokens and of the end of the gap, given the other text."""
        ids = [*self.rearrange(gap), *gap.removed, self.end_of_text[0]]
        return self._nats(torch.tensor(ids), len(ids) - gap.length - 1, len(ids), None)


class PairFiller:
    """Functions that fill in both gaps of a pair with the model of a `Filler`, and score the removed tokens."""

    def __init__(self, filler: Filler) -> None:
        self.filler, self.model, self.mask = filler, filler.model, filler.model.config.mask_token_id

    def fill(self, pair: Pair) -> list[int]:
        """Return the tokens filled in: first one place, then the other, or both by `infill`."""
        before, between, after = pair.parts
        if isinstance(self.filler, MiddleFiller):  # at first, the text after the second gap is not given
            first = self.filler.in_the_middle(Gap([*before, *between], len(before), 0))
            start = len(before) + len(first) + len(between)
            return first + self.filler.in_the_middle(Gap([*before, *first, *between, *after], start, 0))
        ids = torch.tensor([*before, self.mask, *between, self.mask, *after])
        settings = {"order": self.filler.order, "do_sample": False}
        output = self.model.infill(ids, range(1, LONGEST_NAME + 1), **settings)
        (one, two), ids = output.lengths.tolist(), output.sequences[0].tolist()
        second = len(before) + one + len(between)
        return ids[len(before) : len(before) + one] + ids[second : second + two]

    def score(self, pair: Pair) -> tuple[float, float]:
        """Return the results of `score` for a pair. Only one of them is computed."""
        nats, has_end = self.nats(pair), isinstance(self.filler, MiddleFiller) or self.filler.predicts_end
        return (math.nan, nats) if has_end else (nats, math.nan)

    def nats(self, pair: Pair) -> float:
        """Return the negative log-likelihood of the removed tokens and, if the model predicts them, of both ends."""
        before, between, after = pair.parts
        names = [pair.ids[start : start + length] for start, length in pair.gaps]
        if isinstance(self.filler, MiddleFiller):
            first = Gap([*before, *names[0], *between], len(before), len(names[0]))
            second = Gap(pair.ids, *pair.gaps[1])
            return self.filler.nats_with_end(first) + self.filler.nats_with_end(second)
        ids: list[int] = []
        roles: list[int] = []  # 0: given, 1: predicted, 2: neither
        for part, name in zip((before, between, after), (*names, []), strict=True):
            end = self.filler.end_of_text[:1] * (self.filler.max_length - len(name)) if name else []
            ids += [*part, *name, *end]
            num_ends = int(self.filler.predicts_end) if end else 0
            roles += [0] * len(part) + [1] * (len(name) + num_ends) + [2] * (len(end) - num_ends)
        if not self.filler.predicts_end:  # the lengths are known
            ids, roles = pair.ids, [0] * len(pair.ids)
            for start, length in pair.gaps:
                roles[start : start + length] = [1] * length
        role = torch.tensor(roles)[None]
        score = self.model.log_likelihood(
            torch.tensor([ids]), targets=role == 1, context=role == 0, orders="left_to_right"
        )
        return -score.log_likelihood.item()


def make_pairs(documents: list[list[int]], count: int, tokenizer: PreTrainedTokenizerBase) -> list[Pair]:
    """Return the first pair of places of a name in each of `count` evenly spaced documents that have one."""
    found = [pair for ids in documents if (pair := find_pair(ids, tokenizer)) is not None]
    return [found[number] for number in evenly_spaced(len(found), count)]


def find_pair(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> Pair | None:
    """Return two places of the same tokens that spell a name. There is a token before and after each place."""
    pieces = [to_bytes([token], tokenizer) for token in ids]
    starts = [0, *accumulate(map(len, pieces))]
    places: dict[bytes, list[tuple[int, int]]] = {}
    for match in NAME.finditer(b"".join(pieces)):
        first, end = bisect_left(starts, match.start()), bisect_left(starts, match.end())
        if starts[end] == match.end() and starts[first] != match.start() and pieces[first - 1].startswith(b" "):
            first -= 1  # the token of a word includes the space before it
        name = b"".join(pieces[first:end])
        if name.strip() == match.group() and first > 0 and end < len(ids) and end - first <= LONGEST_NAME:
            places.setdefault(match.group(), []).append((first, end - first))
    for spans in places.values():
        for (one, length), (two, other) in combinations(spans, 2):
            if one + length < two and ids[one : one + length] == ids[two : two + other]:
                return Pair(ids, [(one, length), (two, other)])
    return None


def measure_run(folder: Path, options: CompareArguments) -> dict[str, Any]:
    """Return the measurements of a run, and keep them in its folder."""
    path = folder / MEASURED
    if path.exists():
        return read_json(path, ("lines", "spans", "pairs"), "eval/studies/infilling/compare.py")
    results = read_finished_run(folder)
    model, tokenizer = load_model(folder / "model", dtype=torch.float32), load_tokenizer(folder / "model")
    is_middle = folder.name == ARMS[0]
    fills_all = is_middle or bool(model.config.max_gap_length)  # a search for lengths is slow

    def make_filler(max_length: int) -> Filler:
        if is_middle:
            return MiddleFiller(model, max_length, tokenizer.convert_tokens_to_ids(list(SENTINELS)))
        return Filler.of_model(model, str(folder / "model"), max_length)

    measured: dict[str, Any] = {kind: results["evaluations"][-1][kind] for kind in ("left_to_right", "any_order")}
    for kind, settings in (("lines", {"sentences": True, "max_gap": 16, "max_length": 20}), ("spans", {})):
        arguments = InfillingArguments(num_documents=options.num_documents, **settings)
        filler = make_filler(arguments.max_length)
        fill = filler.in_the_middle if is_middle else filler.with_unknown_length
        gaps = held_out_gaps(folder, arguments)
        measured[kind] = measure(gaps, fill, lambda gap, filler=filler: score(filler, gap), tokenizer, fills_all)
    documents = [list(ids)[:48] for ids in load_data_of_run(folder).validation["input_ids"]]
    filler = PairFiller(make_filler(LONGEST_NAME))
    pairs = make_pairs(documents, options.num_documents, tokenizer)
    measured["pairs"] = measure(pairs, filler.fill, filler.score, tokenizer, fills_all)
    write_json(path, measured)
    return measured


def score(filler: Filler, gap: Gap) -> tuple[float, float]:
    """Return the negative log-likelihood of the removed tokens, and that of the tokens and the end of the gap."""
    is_middle = isinstance(filler, MiddleFiller)
    if not (is_middle or filler.predicts_end):
        return filler.nats(gap, only_before=False), math.nan
    with_end = filler.nats_with_end(gap)
    whole = filler.max_length == gap.length and not is_middle  # no slot is left for the end
    return with_end - (0.0 if whole else end_nats(filler, gap)), with_end


def end_nats(filler: Filler, gap: Gap) -> float:
    """Return the negative log-likelihood of the end of a gap, given its tokens and the text around it."""
    given = Gap(gap.ids, gap.start + gap.length, 0)
    if isinstance(filler, MiddleFiller):
        ids = [*filler.rearrange(gap), *gap.removed, filler.end_of_text[0]]
        return filler._nats(torch.tensor(ids), len(ids) - 1, len(ids), None)
    slots = filler.end_of_text[:1] * (filler.max_length - gap.length)
    return filler._nats(torch.tensor(given.with_tokens(slots)), given.start, given.start + 1, given.start + len(slots))


def measure(
    gaps: list[Any],
    fill: Callable[[Any], list[int]],
    score: Callable[[Any], tuple[float, float]],
    tokenizer: PreTrainedTokenizerBase,
    fills_all: bool,
) -> dict[str, float]:
    """Return exact matches, right lengths, CPU seconds per infill, and bits per byte without and with the ends.

    Unless `fills_all`, only some gaps are filled in, to measure the time.
    """
    started = time.process_time()
    pairs = [(fill(gap), gap.removed) for gap in gaps[:NUM_TIMED]]
    seconds = (time.process_time() - started) / len(pairs)
    if fills_all:
        pairs += [(fill(gap), gap.removed) for gap in progress_bar(gaps[NUM_TIMED:], leave=False)]
    is_exact = [to_bytes(ids, tokenizer) == to_bytes(right, tokenizer) for ids, right in pairs]
    num_bytes = sum(len(to_bytes(gap.removed, tokenizer)) for gap in gaps)
    nats = [score(gap) for gap in gaps]
    tokens, with_end = (sum(values) / math.log(2) / num_bytes for values in zip(*nats, strict=True))
    return {
        "gaps": len(gaps),
        "exact": fmean(is_exact) if fills_all else None,
        "length": fmean(len(ids) == len(right) for ids, right in pairs) if fills_all else None,
        "seconds": seconds,
        "bits_per_byte": None if math.isnan(tokens) else tokens,
        "bits_per_byte_with_end": None if math.isnan(with_end) else with_end,
    }


def make_table(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the estimates over seeds of each arm."""
    columns: dict[str, Callable[[dict[str, Any]], float | None]] = {
        "left to right": lambda run: run["left_to_right"],
        "random orders": lambda run: run["any_order"],
        **{
            f"{kind}: {name}": lambda run, kind=kind, key=key: run[kind][key]
            for kind in ("lines", "spans", "pairs")
            for key, name in (
                ("bits_per_byte", "tokens"),
                ("bits_per_byte_with_end", "tokens and end"),
                ("exact", "exact"),
                ("length", "right length"),
                ("seconds", "seconds"),
            )
        },
    }
    return {
        arm: {
            name: estimate([column(run) for run in of_arm])
            for name, column in columns.items()
            if column(of_arm[0]) is not None
        }
        for arm, of_arm in runs.items()
    }


@one_line_errors()
def main(argv: list[str]) -> None:
    """Run the command."""
    parser = Parser(CompareArguments)
    parser.add_argument("runs_dir", type=Path, help="Folder of the runs.")
    options, others = parser.parse(argv)
    folders = {arm: sorted(others.runs_dir.glob(f"seed-*/{arm}/results.json")) for arm in ARMS}
    if not any(folders.values()):
        raise ValueError(
            f"{others.runs_dir} has no finished runs (seed-N/ARM). Pass the folder of the runs of room.yaml."
        )
    with make_folder(options.output_dir):
        runs = {
            arm: [measure_run(path.parent, options) for path in progress_bar(paths, desc=arm)]
            for arm, paths in folders.items()
            if paths
        }
        results = {
            "title": "Gaps of unknown length",
            "command": command_line(__file__, argv),
            "num_documents": options.num_documents,
            "seeds": {arm: [path.parent.parent.name for path in paths] for arm, paths in folders.items()},
            "table": make_table(runs),
            "plotted": ["lines: tokens and end", "spans: tokens and end", "pairs: tokens and end"],
            "runs": runs,
            "versions": versions(),
        }
        write_json(options.output_dir / "compare.json", results)
        write_report(options.output_dir)


if __name__ == "__main__":
    main(sys.argv[1:])
