# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training of a left-to-right model that fills in the middle (Bavarian et al., arXiv 2207.14255).

    python eval/studies/infilling/fill_in_the_middle.py CONFIG.yaml [--key value ...]

The arguments and the run are those of training/pretrain.py. Only the batches differ: a sequence is rearranged, unless
it is left to right (`left_to_right_fraction`). A window, the first part of the sequence, is cut into prefix, middle and
suffix. The rest of the text follows (PSM, prefix-suffix-middle):

    <|fim_prefix|> PREFIX <|fim_suffix|> SUFFIX <|fim_middle|> MIDDLE <|endoftext|> REST

The middle is one of the gaps that the orders `gaps_last` have, and contains no end-of-text. Windows have different
lengths. Otherwise, the number of tokens in the prefix and the suffix would show the length of the middle.
"""

import sys
from collections.abc import Mapping, Sequence
from unittest.mock import patch

import torch
import torch.nn.functional as F

from modeling_aogpt.data_collator import draw_gaps, draw_integers, make_streams, to_uniform
from modeling_aogpt.tokenization import load_tokenizer
from training import pretrain
from training.draws import OrderDraws

SENTINELS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
NUM_ADDED = 4  # three sentinels and end-of-text
SHORTEST = 0.375  # length of the shortest window, as a fraction of the sequence


class MiddleDraws(OrderDraws):
    """Data collator that draws which sequences stay as they are, and rearranges the others."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        tokenizer = load_tokenizer(self.training.output_dir / "tokenizer")
        self._sentinels, self._end = tokenizer.convert_tokens_to_ids(list(SENTINELS)), tokenizer.eos_token_id
        self._collate, self._collator = self._collator, self._rearrange

    def _rearrange(self, features: Sequence[Mapping[str, object]]) -> dict[str, torch.Tensor]:
        """Return the batch of features for which the fraction of left-to-right sequences is known."""
        samples = torch.tensor([int(feature["order_seed"]) for feature in features])
        streams, rearranged = make_streams(self.training.seed, samples), []
        for feature, stream in zip(features, streams, strict=True):
            fraction = feature.get("left_to_right_fraction", self.training.left_to_right_fraction)
            ids = [int(token) for token in feature["input_ids"]]
            is_kept = to_uniform(draw_integers(stream, 1)).item() < fraction
            ids, labels = (ids, ids) if is_kept else rearrange(ids, stream, self._sentinels, self._end)
            rearranged.append({"input_ids": ids, "labels": labels})
        return self._collate(rearranged)


def rearrange(ids: list[int], stream: torch.LongTensor, sentinels: list[int], end: int) -> tuple[list[int], list[int]]:
    """Return the ids and labels of a sequence whose first part, the window, is rearranged.

    If the window has no gap, return the sequence as it is. Text that does not fit is cut off at the end. Sentinels have
    no loss, because they are always given.
    """
    before, after, middle = sentinels
    uniform = to_uniform(draw_integers(stream, 3 * len(ids) + 4)[-2:]).tolist()
    least, most = int(SHORTEST * len(ids)), len(ids) - NUM_ADDED
    length = least + int(uniform[0] * (most - least + 1))
    is_gap = draw_gaps(stream[None], torch.tensor([length]), length)[0][0] & (torch.tensor(ids[:length]) != end)
    edges = F.pad(is_gap.long(), (1, 1)).diff().nonzero()[:, 0].tolist()
    if not edges:
        return ids, ids
    number = 2 * int(uniform[1] * len(edges) / 2)
    start, stop = edges[number : number + 2]
    parts = [before, *ids[:start], after, *ids[stop:length], middle, *ids[start:stop], end, *ids[length:]][: len(ids)]
    return parts, [-100 if token in sentinels else token for token in parts]


def main(argv: list[str]) -> None:
    """Run the command."""
    with patch.object(pretrain, "OrderDraws", MiddleDraws):
        pretrain.main(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
