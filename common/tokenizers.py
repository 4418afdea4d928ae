# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Functions that train tokenizers, set the vocabulary of a model, and turn tokens back into text."""

import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from modeling_aogpt.configuration_aogpt import GPT2_PADDED_VOCAB_SIZE, GPT2_VOCAB_SIZE
from modeling_aogpt.tokenization import add_mask_token

END_OF_TEXT = "<|endoftext|>"
MIN_VOCAB_SIZE = 257  # 256 bytes and end-of-text
BYTE_OF_CHARACTER = {character: byte for byte, character in bytes_to_unicode().items()}  # in byte-level BPE tokens


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer like GPT-2's. Merges do not cross word boundaries, and any text can be encoded.

    The same documents in the same order always give the same tokenizer. `vocab_size` counts 256 bytes, `<|endoftext|>`
    (id 0) and merges, but not the mask token. Raise a `ValueError` if it is less than 257, or if the documents do not
    have enough different merges.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"`vocab_size` must be at least {MIN_VOCAB_SIZE} for byte-level BPE, but is {vocab_size}. The vocabulary "
            "contains 256 bytes and end-of-text."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise ValueError(
            f"`vocab_size` must be at most {tokenizer.get_vocab_size()} for this corpus, which has no further "
            f"merges, but is {vocab_size}. Decrease `vocab_size`, or add text."
        )
    # End-of-text is also the padding token, as usual for GPT-2. The attention mask of a batch marks the padding.
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )
    return add_mask_token(wrapped)


def vocabulary_arguments(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """Return the arguments of `AOGPTConfig` that depend on the tokenizer.

    The mask has the first id after the ids of text. A decoder never embeds the mask, so the token table needs no entry
    for it. The table of GPT-2's 50257 ids is padded to 50304, as in the released checkpoints.
    """
    valid = tokenizer.mask_token_id
    return {
        "vocab_size": GPT2_PADDED_VOCAB_SIZE if valid == GPT2_VOCAB_SIZE else valid,
        "num_valid_tokens": valid,
        "mask_token_id": valid,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def decode(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Decode a sequence without the end-of-text tokens at its end. End-of-text tokens elsewhere are kept."""
    return tokenizer.decode(ids[: num_unpadded(ids, tokenizer.eos_token_id)])


def to_bytes(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> bytes:
    """Return the UTF-8 bytes of the text of tokens. Unlike decoding, this also works for tokens that split a character.

    The tokenizer must be lossless: byte-level BPE or Llama's. Special tokens become their names.
    """
    is_byte_level = "ByteLevel" in str(tokenizer.backend_tokenizer.decoder)
    added_ids, parts = tokenizer.added_tokens_decoder.keys(), []
    for token_id, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if is_byte_level and token_id not in added_ids:
            parts.append(bytes(BYTE_OF_CHARACTER[character] for character in token))
        elif re.fullmatch("<0x[0-9A-F]{2}>", token):  # SentencePiece's name of a byte
            parts.append(bytes.fromhex(token[3:5]))
        else:
            parts.append(token.replace("▁", " ").encode())
    return b"".join(parts)


def num_unpadded(ids: Sequence[int], *padding: int | None) -> int:
    """Return the length of a sequence without the ids at its end that are in `padding`, such as end-of-text."""
    end = len(ids)
    while end and ids[end - 1] in padding:
        end -= 1
    return end
