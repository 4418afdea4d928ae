# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Tiny tokenizers of the usual kinds, built without files."""

from collections.abc import Callable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import LlamaTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from common.tokenizers import train_tokenizer

WORDS = ["I", "saw", "a", "the", "cat", "sat", "un", "def"]
LETTERS = "Iabcdefghilnorstuwy(),.:\n"


def byte_level() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer like GPT-2's."""
    return train_tokenizer([f" {word}" for word in WORDS] * 9, 270)


def metaspace_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a BPE vocabulary of letters and of words with and without a space before them, and its merges."""
    vocabulary, merges = ["<unk>", "<s>", "</s>", "▁", *LETTERS], []
    for word in (*(f"▁{word}" for word in WORDS), *WORDS):
        for end in range(1, len(word)):
            if word[: end + 1] not in vocabulary:
                vocabulary.append(word[: end + 1])
                merges.append((word[:end], word[end]))
    return {token: number for number, token in enumerate(vocabulary)}, merges


def llama(prepend_scheme: str = "first") -> PreTrainedTokenizerFast:
    """Return a tokenizer like Llama's, with a space before the first word or, as older ones, before each text."""
    tokenizer = _metaspace_model()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    return _wrap(tokenizer)


def old_llama() -> PreTrainedTokenizerFast:
    """Return a tokenizer like that of Llama 2, with a normalizer that puts a space before each text."""
    tokenizer = _metaspace_model()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _wrap(tokenizer)


def llama_class() -> LlamaTokenizer:
    """Return a tokenizer of Llama's class, which does not save normalizers."""
    vocabulary, merges = metaspace_vocabulary()
    return LlamaTokenizer(vocab=vocabulary, merges=merges)


def word_piece() -> PreTrainedTokenizerFast:
    """Return a tokenizer like BERT's."""
    pieces = [*LETTERS.strip(), *(f"##{letter}" for letter in LETTERS.strip()), *WORDS, "##at", "7"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(["[UNK]", "[CLS]", "[SEP]", *pieces]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFC(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", eos_token="[SEP]")


def characters() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each character, also for the space."""
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", "</s>", " ", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")


def with_start(make: Callable[[], PreTrainedTokenizerFast]) -> PreTrainedTokenizerBase:
    """Return a tokenizer that adds a start token to each text."""
    tokenizer = make()
    token = tokenizer.bos_token = tokenizer.bos_token or tokenizer.eos_token
    start = processors.TemplateProcessing(f"{token} $A", None, [(token, tokenizer.bos_token_id)])
    tokenizer.backend_tokenizer.post_processor = start
    return tokenizer


def _metaspace_model() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(*metaspace_vocabulary(), unk_token="<unk>"))
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), strip])
    return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


KINDS = {
    "byte-level": byte_level,
    "Llama": llama,
    "Llama, each text": lambda: llama("always"),
    "Llama 2": old_llama,
    "Llama's class": llama_class,
    "WordPiece": word_piece,
    "characters": characters,
}
