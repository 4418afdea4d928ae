# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from common.tokenization import train_tokenizer
from eval.infilling import (
    KINDS,
    infill,
    kind_of,
    letter_and_mark,
    make_holes,
    one_or_two_words,
    printable,
    sample,
)
from tests.test_trained_tokenizers import DOCUMENTS

KNOWN = {"train": set(DOCUMENTS[1::2]), "validation": set(DOCUMENTS[::2])}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(DOCUMENTS, 300)  # so few merges that most words take several tokens


@pytest.fixture(scope="module")
def sequences(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    longest = max(map(len, tokenizer(DOCUMENTS)["input_ids"])) + 1
    return [ids + [tokenizer.eos_token_id] * (longest - len(ids)) for ids in tokenizer(DOCUMENTS)["input_ids"]]


def model_that_writes(sequences: torch.Tensor, mask_token_id: int) -> SimpleNamespace:
    """Fills masks, or whole sequences, with what stands in `sequences`."""

    def generate(inputs: torch.Tensor | None = None, **options: object) -> torch.Tensor:
        return sequences if inputs is None else torch.where(inputs == mask_token_id, sequences, inputs)

    return SimpleNamespace(generate=generate)


def test_letter_and_mark() -> None:
    draw = random.Random(0)
    assert letter_and_mark("LATIN SMALL LETTER A WITH ACUTE", draw) == {3, 5}
    assert letter_and_mark("GREEK SMALL LETTER ETA WITH DASIA AND OXIA", draw) == {3, 5}
    assert letter_and_mark("SOLIDUS WITH OVERLINE", draw) == set()


def test_one_or_two_words() -> None:
    draw = random.Random(0)
    assert one_or_two_words("PLUS SIGN", draw) == set()
    drawn = [one_or_two_words("A B C D", draw) for _ in range(200)]
    assert {len(words) for words in drawn} == {1, 2}
    assert set.union(*drawn) == {0, 1, 2, 3}


def test_documents_in_which_nothing_is_hidden_are_passed_over(
    tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]
) -> None:
    chosen = [text for text in DOCUMENTS if "ALEPH" not in text]
    assert len(chosen) < len(DOCUMENTS)
    holes = make_holes(tokenizer, DOCUMENTS, sequences, lambda text, draw: {0} if text in chosen else set(), 7, seed=0)
    assert [hole.text for hole in holes] == chosen[:7]


def test_the_generator_reaches_the_model(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    generator, seen = torch.Generator(), []
    written = torch.tensor(sequences[:1])
    model = SimpleNamespace(generate=lambda *inputs, **options: seen.append(options["generator"]) or written)
    holes = make_holes(tokenizer, DOCUMENTS, sequences, letter_and_mark, limit=1, seed=0)
    sample(model, tokenizer, KNOWN, 1, generator)
    infill(model, tokenizer, holes, KNOWN, generator)
    assert seen == [generator, generator]


def test_holes_know_the_words_of_their_tokens(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    hole = make_holes(tokenizer, DOCUMENTS, sequences, letter_and_mark, limit=3, seed=0)[2]
    words = [(tokenizer.decode(hole.ids[tokens]).strip(), is_hidden) for tokens, is_hidden in hole.tokens_of_words()]
    assert DOCUMENTS[2] == "LATIN SMALL LETTER ALEPH WITH DIAERESIS"
    assert words == [(word, word in ("ALEPH", "DIAERESIS")) for word in DOCUMENTS[2].split()]


def test_only_hidden_words_are_filled(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    holes = make_holes(tokenizer, DOCUMENTS, sequences, letter_and_mark, limit=100, seed=0)
    (bang,) = tokenizer.encode("!")
    bangs = torch.full((len(holes), len(sequences[0])), bang)
    found = infill(model_that_writes(bangs, tokenizer.mask_token_id), tokenizer, holes, KNOWN, None)
    assert found["count"] == len(DOCUMENTS) == 54
    assert found["shares"] == {"exact": 0, "held_out": 0, "train": 0, "new": 1}
    for example in found["examples"]:
        script, case, _, letter, _, mark = example["original"].split()
        tokens = [len(tokenizer.tokenize(f" {word}")) for word in (letter, mark)]
        assert max(tokens) > 1
        assert example["before"] == f"{script} {case} LETTER {'_' * tokens[0]} WITH {'_' * tokens[1]}"
        assert example["after"] == [
            *((script, False), (f" {case}", False), (" LETTER", False)),
            *(("!" * tokens[0], True), (" WITH", False), ("!" * tokens[1], True)),
        ]


def test_a_text_that_ends_early_is_shown_to_its_end(
    tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]
) -> None:
    (hole,) = make_holes(tokenizer, DOCUMENTS, sequences, letter_and_mark, limit=1, seed=0)
    *_, (last_word, _) = hole.tokens_of_words()
    assert last_word.stop - last_word.start > 1
    for last_token, shown in ((last_word.start, (" WITH", False)), (last_word.start + 1, ("!", True))):
        written = torch.full((1, len(hole.ids)), tokenizer.eos_token_id)
        written[:, :last_token] = tokenizer.encode("!")[0]
        found = infill(model_that_writes(written, tokenizer.mask_token_id), tokenizer, [hole], KNOWN, None)
        assert found["examples"][0]["after"][-1] == shown


def test_shares_tell_originals_from_other_names(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    held_out = sequences[::2]
    holes = make_holes(tokenizer, DOCUMENTS[::2], held_out, one_or_two_words, limit=100, seed=0)
    model = model_that_writes(torch.tensor(held_out), tokenizer.mask_token_id)
    assert infill(model, tokenizer, holes, KNOWN, None)["shares"] == {"exact": 1, "held_out": 0, "train": 0, "new": 0}


def test_kinds() -> None:
    known = {"train": {"a"}, "validation": {"b", "c"}}
    assert [kind_of(text, known, "b") for text in ("b", "c", "a", "d")] == list(KINDS)
    assert kind_of("b", known) == "held_out"
    assert kind_of("b", {"train": {"b"}, "validation": {"b"}}) == "held_out"  # of two documents with one text


def test_samples(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    written = torch.tensor([sequences[0], sequences[1], sequences[1], [tokenizer.eos_token_id] * len(sequences[0])])
    found = sample(model_that_writes(written, -1), tokenizer, KNOWN, 4, None)
    assert found["shares"] == {"exact": 0, "held_out": 0.25, "train": 0.5, "new": 0.25}
    assert found["examples"][1] == {"text": DOCUMENTS[1], "kind": "train"}


def test_printable() -> None:
    assert printable("größer 漢\n\t\x1b[1m") == "größer 漢���[1m"
