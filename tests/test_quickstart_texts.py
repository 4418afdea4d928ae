# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from common.tokenization import train_tokenizer
from eval.benchmarks.quickstart_texts import (
    KINDS,
    choose_letter_and_mark,
    choose_one_or_two_words,
    classify,
    infill,
    make_printable,
    mask_documents,
    sample,
)
from tests.test_trained_tokenizers import DOCUMENTS

KNOWN = {"train": set(DOCUMENTS[1::2]), "validation": set(DOCUMENTS[::2])}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(DOCUMENTS, 300)  # few merges, so that most words have several tokens


@pytest.fixture(scope="module")
def sequences(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    longest = max(map(len, tokenizer(DOCUMENTS)["input_ids"])) + 1
    return [ids + [tokenizer.eos_token_id] * (longest - len(ids)) for ids in tokenizer(DOCUMENTS)["input_ids"]]


def model_that_generates(sequences: torch.Tensor, mask_token_id: int) -> SimpleNamespace:
    """Return a model that fills masks, or whole sequences, with the tokens of `sequences`."""

    def generate(inputs: torch.Tensor | None = None, **options: object) -> torch.Tensor:
        return sequences if inputs is None else torch.where(inputs == mask_token_id, sequences, inputs)

    return SimpleNamespace(generate=generate)


def test_choose_letter_and_mark() -> None:
    rng = random.Random(0)
    assert choose_letter_and_mark("LATIN SMALL LETTER A WITH ACUTE", rng) == {3, 5}
    assert choose_letter_and_mark("GREEK SMALL LETTER ETA WITH DASIA AND OXIA", rng) == {3, 5}
    assert choose_letter_and_mark("SOLIDUS WITH OVERLINE", rng) == set()


def test_choose_one_or_two_words() -> None:
    rng = random.Random(0)
    assert choose_one_or_two_words("PLUS SIGN", rng) == set()
    drawn = [choose_one_or_two_words("A B C D", rng) for _ in range(200)]
    assert {len(words) for words in drawn} == {1, 2}
    assert set.union(*drawn) == {0, 1, 2, 3}


def test_documents_without_masked_words_are_skipped(
    tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]
) -> None:
    chosen = [text for text in DOCUMENTS if "ALEPH" not in text]
    assert len(chosen) < len(DOCUMENTS)
    documents = mask_documents(
        tokenizer, DOCUMENTS, sequences, lambda text, rng: {0} if text in chosen else set(), 7, seed=0
    )
    assert [document.text for document in documents] == chosen[:7]


def test_generator_is_passed_to_the_model(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    generator, seen = torch.Generator(), []
    written = torch.tensor(sequences[:1])
    model = SimpleNamespace(generate=lambda *inputs, **options: seen.append(options["generator"]) or written)
    documents = mask_documents(tokenizer, DOCUMENTS, sequences, choose_letter_and_mark, limit=1, seed=0)
    sample(model, tokenizer, KNOWN, 1, generator)
    infill(model, tokenizer, documents, KNOWN, generator)
    assert seen == [generator, generator]


def test_words_of_a_masked_document(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    document = mask_documents(tokenizer, DOCUMENTS, sequences, choose_letter_and_mark, limit=3, seed=0)[2]
    words = [
        (tokenizer.decode(document.ids[positions]).strip(), is_masked) for positions, is_masked in document.words()
    ]
    assert DOCUMENTS[2] == "LATIN SMALL LETTER ALEPH WITH DIAERESIS"
    assert words == [(word, word in ("ALEPH", "DIAERESIS")) for word in DOCUMENTS[2].split()]


def test_only_masked_words_are_filled(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    documents = mask_documents(tokenizer, DOCUMENTS, sequences, choose_letter_and_mark, limit=100, seed=0)
    (bang,) = tokenizer.encode("!")
    bangs = torch.full((len(documents), len(sequences[0])), bang)
    found = infill(model_that_generates(bangs, tokenizer.mask_token_id), tokenizer, documents, KNOWN, None)
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


def test_text_that_ends_early_is_shown_to_its_end(
    tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]
) -> None:
    (document,) = mask_documents(tokenizer, DOCUMENTS, sequences, choose_letter_and_mark, limit=1, seed=0)
    *_, (last_word, _) = document.words()
    assert last_word.stop - last_word.start > 1
    for last_token, shown in ((last_word.start, (" WITH", False)), (last_word.start + 1, ("!", True))):
        written = torch.full((1, len(document.ids)), tokenizer.eos_token_id)
        written[:, :last_token] = tokenizer.encode("!")[0]
        found = infill(model_that_generates(written, tokenizer.mask_token_id), tokenizer, [document], KNOWN, None)
        assert found["examples"][0]["after"][-1] == shown


def test_shares_distinguish_originals_from_other_names(
    tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]
) -> None:
    held_out = sequences[::2]
    documents = mask_documents(tokenizer, DOCUMENTS[::2], held_out, choose_one_or_two_words, limit=100, seed=0)
    model = model_that_generates(torch.tensor(held_out), tokenizer.mask_token_id)
    assert infill(model, tokenizer, documents, KNOWN, None)["shares"] == {
        "exact": 1,
        "held_out": 0,
        "train": 0,
        "new": 0,
    }


def test_kinds() -> None:
    known = {"train": {"a"}, "validation": {"b", "c"}}
    assert [classify(text, known, "b") for text in ("b", "c", "a", "d")] == list(KINDS)
    assert classify("b", known) == "held_out"
    assert classify("b", {"train": {"b"}, "validation": {"b"}}) == "held_out"  # two documents have the same text


def test_samples(tokenizer: PreTrainedTokenizerBase, sequences: list[list[int]]) -> None:
    written = torch.tensor([sequences[0], sequences[1], sequences[1], [tokenizer.eos_token_id] * len(sequences[0])])
    found = sample(model_that_generates(written, -1), tokenizer, KNOWN, 4, None)
    assert found["shares"] == {"exact": 0, "held_out": 0.25, "train": 0.5, "new": 0.25}
    assert found["examples"][1] == {"text": DOCUMENTS[1], "kind": "train"}


def test_make_printable() -> None:
    assert make_printable("größer 漢\n\t\x1b[1m") == "größer 漢���[1m"
