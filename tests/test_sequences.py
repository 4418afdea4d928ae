# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from datasets import Dataset, Features, Sequence, Value, concatenate_datasets
from tokenizers import Regex, Tokenizer, models, normalizers
from tokenizers.processors import ByteLevel
from transformers import PreTrainedTokenizerFast

from common.encoding import _label, count_token_bytes, encode_batch, encode_documents
from common.packing import PackedRows, cut
from common.tokenizers import train_tokenizer
from tests.tokenizers_of_all_kinds import KINDS, byte_level


@pytest.mark.parametrize(
    ("text", "offsets", "sizes"),
    [
        ("", [], [1]),
        ("ab c", [(0, 2), (2, 4)], [2, 2, 1]),
        ("ab c ", [(0, 2), (3, 4)], [2, 2, 2]),  # blanks outside of all tokens
        ("abc", [(0, 2), (0, 0), (2, 3)], [2, 0, 1, 1]),  # a token without text
        ("🙂é", [(0, 1), (0, 1), (1, 2)], [4, 0, 2, 1]),  # a character split into two tokens
    ],
)
def test_bytes_of_tokens(text: str, offsets: list[tuple[int, int]], sizes: list[int]) -> None:
    assert count_token_bytes(text, offsets) == sizes


def test_cut_keeps_all_tokens() -> None:
    documents = [{"input_ids": [1, 2, 3], "token_bytes": [1, 1, 2]}, {"input_ids": [4] * 6, "token_bytes": [5] * 6}]
    assert list(cut(documents, 4)) == [
        {"input_ids": [1, 2, 3, 4], "num_bytes": 9},
        {"input_ids": [4, 4, 4, 4], "num_bytes": 20},
        {"input_ids": [4], "num_bytes": 5},
    ]
    assert list(cut([{"input_ids": [1, 2]}, {"input_ids": [3, 4]}], 2)) == [
        {"input_ids": [1, 2]},
        {"input_ids": [3, 4]},
    ]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 11, 22])
def test_packed_rows_may_span_files_and_documents(length: int) -> None:
    features = Features({"input_ids": Sequence(Value("uint16"))})
    files = ([[1, 2, 3], []], [[4]], [[], [5, 6, 7, 8, 60_000], [9]], [list(range(10, 23))])
    parts = [Dataset.from_dict({"input_ids": documents}, features=features) for documents in files]
    documents = concatenate_datasets(parts)
    ids = [id for document in documents["input_ids"] for id in document]
    rows = PackedRows(documents, length)
    assert len(rows) == len(ids) // length
    found = rows[list(range(len(rows)))]["input_ids"]
    assert found.dtype == np.int64
    assert found.tolist() == [ids[start : start + length] for start in range(0, len(rows) * length, length)]
    assert rows[[len(rows) - 1, 0]]["input_ids"].tolist() == [found[-1].tolist(), found[0].tolist()]
    shuffled = PackedRows(documents.select([2, 0]), 2)
    assert shuffled[[0, 1]]["input_ids"].tolist() == [[4, 1], [2, 3]]


def test_ids_are_stored_in_16_bits_if_they_fit() -> None:
    for highest, dtype in ((2**16 - 1, "uint16"), (2**16, "uint32")):
        vocabulary = Tokenizer(models.WordLevel({"a": 0, "b": highest}, unk_token="a"))  # the ids have gaps
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="a")
        documents = encode_documents(Dataset.from_dict({"text": ["b"]}), tokenizer, with_token_bytes=False)
        assert documents.features["input_ids"].feature.dtype == dtype
        assert documents["input_ids"][:] == [[highest, 0]]


@pytest.mark.parametrize("text", ["ab", "aZb"])
def test_unknown_characters_give_a_warning(
    text: str, tiny_tokenizer: PreTrainedTokenizerFast, caplog: pytest.LogCaptureFixture
) -> None:
    encode_documents(Dataset.from_dict({"text": ["a", text]}), tiny_tokenizer, with_token_bytes=True)
    assert ("1 or more tokens are <unk>" in caplog.text) == (text == "aZb")


@pytest.mark.parametrize(
    ("normalizer", "text", "decoded"),
    [
        (normalizers.Lowercase(), "I saw the cat", "i saw the cat"),
        (normalizers.Replace(Regex(r"\s+"), " "), "def f():\n    pass", "def f(): pass"),
        (normalizers.Replace(Regex(r"\s+(?=\()"), ""), "the (only) cat", "the(only) cat"),
        (normalizers.NFKC(), "the cat\N{FULLWIDTH COMMA}the dog", "the cat,the dog"),
    ],
)
def test_a_tokenizer_that_changes_texts_gives_a_warning(
    normalizer: normalizers.Normalizer, text: str, decoded: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, texts = byte_level(), Dataset.from_dict({"text": ["", "the first text", text, "the last text"]})
    encode_documents(texts, tokenizer, with_token_bytes=True)
    assert not caplog.text
    tokenizer.backend_tokenizer.normalizer = normalizer
    encode_documents(texts, tokenizer, with_token_bytes=True)
    assert f"changes {text!r} to {decoded!r}, so bits per byte are too low" in caplog.text


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"WordPiece"}))
def test_a_tokenizer_that_keeps_texts_gives_no_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["I  saw,\n\n   the\ncat (a) . ", "  the cat\n", " the cat"]
    encode_documents(Dataset.from_dict({"text": texts}), KINDS[kind](), with_token_bytes=True)
    assert not caplog.text


def test_tokens_without_text_are_not_context() -> None:
    assert _label([5, 6, 7], [(0, 0), (0, 1), (1, 2)], [True, False]) == [5, -100, 7]


@pytest.mark.parametrize("trim_offsets", [False, True])
def test_spaces_belong_to_tokens_whatever_the_offsets(trim_offsets: bool) -> None:
    tokenizer = train_tokenizer(["the cat sat on the mat  and   left"] * 50, 275)
    tokenizer.backend_tokenizer.post_processor = ByteLevel(trim_offsets=trim_offsets)
    encoded = encode_batch(["the[ cat   ]sat on the [mat]"], tokenizer, False, "[]")
    labels = [
        (tokenizer.decode([token]), label == -100)
        for token, label in zip(encoded["input_ids"][0], encoded["labels"][0], strict=True)
    ]
    assert "".join(text for text, _ in labels).startswith("the cat   sat on the mat")
    assert (
        "".join(text for text, is_context in labels if is_context) == " cat  "
    )  # " sat" and " mat" are only partly context
