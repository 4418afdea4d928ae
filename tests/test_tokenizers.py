# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from common.tokenizers import decode, to_bytes, train_tokenizer, vocabulary_arguments
from modeling_aogpt.configuration_aogpt import AOGPTConfig
from modeling_aogpt.tokenization import add_mask_token, load_tokenizer

DOCUMENTS = [
    f"{script} {case} LETTER {letter} WITH {mark}"
    for script in ("LATIN", "GREEK", "CYRILLIC")
    for case in ("SMALL", "CAPITAL")
    for letter in ("ALEPH", "BETA", "YU")
    for mark in ("ACUTE", "GRAVE", "DIAERESIS")
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(DOCUMENTS, 318)


def test_special_tokens_have_fixed_ids(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id == 0
    assert tokenizer.eos_token == "<|endoftext|>"
    assert (tokenizer.mask_token, tokenizer.mask_token_id, len(tokenizer)) == ("<|mask|>", 318, 319)


def test_a_mask_includes_the_blank_before_it(tokenizer: PreTrainedTokenizerBase) -> None:
    whole = tokenizer.encode("LATIN SMALL LETTER YU WITH ACUTE")
    masked = tokenizer.encode("LATIN SMALL <|mask|> YU WITH ACUTE")
    assert masked == [*whole[:2], tokenizer.mask_token_id, *whole[3:]]


def test_the_same_corpus_gives_the_same_files_in_another_process(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path / "here")
    program = (
        "import sys; from tests.test_tokenizers import DOCUMENTS;"
        "from common.tokenizers import train_tokenizer;"
        "train_tokenizer(DOCUMENTS, 318).save_pretrained(sys.argv[1])"
    )
    root = Path(__file__).parent.parent
    subprocess.run([sys.executable, "-c", program, tmp_path / "there"], check=True, cwd=root)
    digests = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / folder).iterdir()}
        for folder in ("here", "there")
    ]
    assert set(digests[0]) == {"tokenizer.json", "tokenizer_config.json"}
    assert digests[0] == digests[1]


def test_a_saved_tokenizer_loads_unchanged(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for again in (AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))):
        assert again.get_vocab() == tokenizer.get_vocab()
        assert again.special_tokens_map == tokenizer.special_tokens_map
        text = "LATIN <|mask|> LETTER"
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(" A ,b .")) == " A ,b ."


def test_vocabulary_arguments_of_a_trained_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    config = AOGPTConfig(**vocabulary_arguments(tokenizer))
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (318, 318, 318)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 0, 0)


@pytest.mark.parametrize(("valid", "table"), [(50_257, 50_304), (50_304, 50_304), (50_256, 50_256)])
def test_only_the_token_table_of_gpt2s_vocabulary_is_padded(valid: int, table: int) -> None:
    words = {"</s>": 0} | {f"w{id}": id for id in range(1, valid)}
    other = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words)), eos_token="</s>")
    config = AOGPTConfig(**vocabulary_arguments(add_mask_token(other)))
    assert (config.vocab_size, config.num_valid_tokens, config.mask_token_id) == (table, valid, valid)


def test_wrong_vocabulary_sizes_are_errors() -> None:
    with pytest.raises(ValueError, match="`vocab_size` must be at least 257 for"):
        train_tokenizer(DOCUMENTS, 256)
    with pytest.raises(ValueError, match=r"`vocab_size` must be at most \d+ for this corpus, .* but is 5000"):
        train_tokenizer(DOCUMENTS, 5000)


def test_decoding_removes_trailing_ends_of_text_only(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    end = tiny_tokenizer.eos_token_id
    assert decode([0, end, 1, end, end], tiny_tokenizer) == tiny_tokenizer.decode([0, end, 1])
    assert decode([end, end], tiny_tokenizer) == ""
    assert decode([0, 1], tiny_tokenizer) == tiny_tokenizer.decode([0, 1])


def test_end_of_text_spelled_in_a_text_is_decoded() -> None:
    tokenizer = train_tokenizer(["ab abc"] * 9, 258)
    spelled = tokenizer.convert_tokens_to_ids(list("a<|endoftext|>"))
    assert tokenizer.eos_token_id not in spelled
    assert decode([*spelled, tokenizer.eos_token_id], tokenizer) == "a<|endoftext|>"


def test_bytes_of_tokens_that_split_characters(tokenizer: PreTrainedTokenizerBase) -> None:
    ids = tokenizer.encode("LATIN é 🙂\n")
    assert to_bytes(ids, tokenizer) == "LATIN é 🙂\n".encode()
    parts = [b"LATIN", b" ", b"\xc3", b"\xa9", b" ", b"\xf0", b"\x9f", b"\x99", b"\x82", b"\n"]
    assert [to_bytes([token], tokenizer) for token in ids] == parts
    assert to_bytes([tokenizer.eos_token_id, ids[-1]], tokenizer) == b"<|endoftext|>\n"
    assert to_bytes([], tokenizer) == b""


def test_bytes_of_added_tokens_that_are_text() -> None:
    tokenizer = train_tokenizer(["ab abc"] * 9, 258)
    tokenizer.add_tokens("  é")
    assert to_bytes(tokenizer.encode("ab  éc"), tokenizer) == "ab  éc".encode()


def test_bytes_of_sentencepiece_tokens() -> None:
    pieces = ["</s>", "▁a", "é", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]
    inner = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}))
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>")
    assert to_bytes([2, 1, 3, 4, 5, 6, 0], tokenizer) == "é a🙂</s>".encode()
    assert to_bytes([4, 5], tokenizer) == b"\x9f\x99"
