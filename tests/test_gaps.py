# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Texts with gaps and tokenizers of all kinds: the text around gaps stays as it is."""

import json
import random
from itertools import chain
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import AddedToken, AutoTokenizer, PreTrainedTokenizerFast, pipeline

from common.tokenizers import train_tokenizer
from modeling_aogpt import AOGPTForMaskedLM, infill
from modeling_aogpt.infill import encode_between_masks, encode_parts, encode_with_masks
from modeling_aogpt.tokenization import add_mask_token, keep_space_before_masks, load_tokenizer
from tests.references import random_encoder, random_model, with_class
from tests.tokenizers_of_all_kinds import KINDS, llama, llama_class, with_start
from training.conversion.export_causal_lm import restore_mask_token

TEXTS = ["I saw a cat.", "un</s>the cat", " the\n\n cat", "", "<s>a", "a\nb"]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of a kind of tokenizer."""
    return request.param


@pytest.fixture
def saved(kind: str, tmp_path: Path) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a mask token that was saved and loaded."""
    add_mask_token(KINDS[kind]()).save_pretrained(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


@pytest.mark.parametrize("starts", [False, True])
def test_a_mask_token_changes_no_other_text(kind: str, starts: bool, tmp_path: Path) -> None:
    tokenizer = with_start(KINDS[kind]) if starts else KINDS[kind]()
    expected = [tokenizer(text).input_ids for text in TEXTS]
    add_mask_token(tokenizer).save_pretrained(tmp_path)
    assert [load_tokenizer(tmp_path)(text).input_ids for text in TEXTS] == expected


def test_the_name_of_a_mask_in_a_text_is_text(kind: str, saved: PreTrainedTokenizerFast) -> None:
    original = KINDS[kind]()
    texts = ["a <|mask|> b", "a<|mask|>"]
    kept, expected = (
        [tokenizer(text, split_special_tokens=True, add_special_tokens=False).input_ids for text in texts]
        for tokenizer in (keep_space_before_masks(saved), original)
    )
    if kind == "byte-level":  # the original tokenizer already has a mask
        assert [saved.decode(ids) for ids in kept] == texts
    else:
        assert kept == expected
    assert saved.mask_token_id in saved("a <|mask|>").input_ids


def test_an_exported_tokenizer_has_no_mask(kind: str, tmp_path: Path) -> None:
    tokenizer = KINDS[kind]()
    texts = [*TEXTS, "a <|mask|> b"]
    expected = [tokenizer(text).input_ids for text in texts]
    add_mask_token(tokenizer).save_pretrained(tmp_path)
    restore_mask_token(tmp_path)
    exported = AutoTokenizer.from_pretrained(tmp_path)
    assert [exported(text).input_ids for text in texts] == expected or kind == "byte-level"  # it already had a mask
    assert exported.mask_token is None


@pytest.mark.parametrize(
    "text",
    ["I saw a <>.", "un<>ly", "<>)", "a\n\n<>", "def f():\n    <>\n", "<> the <> cat", "<>", "a  <>", "(<>)\n<> cat"],
)
def test_the_text_around_masks_is_kept(kind: str, saved: PreTrainedTokenizerFast, text: str) -> None:
    text = text.replace("<>", saved.mask_token)
    ids = encode_with_masks(text, saved)
    decoded = saved.decode(ids)
    if kind == "WordPiece":  # its tokens do not contain whitespace
        assert decoded.replace(" ", "") == "".join(text.split())
        return
    gap = saved.mask_token if kind == "characters" else f" {saved.mask_token}"  # the space may belong to the gap
    assert decoded == text.replace(gap, saved.mask_token)
    assert saved(text, add_special_tokens=False).input_ids == ids  # so generate and fill-mask get the same ids


def test_parts_of_words_begin_no_word() -> None:
    tokenizer = add_mask_token(KINDS["WordPiece"]())
    (before, after), (_, word) = (encode_between_masks(text, tokenizer) for text in ("un<|mask|>at", "un<|mask|> at"))
    assert tokenizer.convert_ids_to_tokens(before + after) == ["un", "##at"]
    assert tokenizer.convert_ids_to_tokens(word) == ["a", "##t"]


@pytest.mark.parametrize("first", ["a ", ""])
def test_only_the_first_part_gets_a_start_token(kind: str, first: str) -> None:
    tokenizer = add_mask_token(with_start(KINDS[kind]))
    mask, start = tokenizer.mask_token, tokenizer.bos_token
    plain = encode_with_masks(f"{first}{mask} cat{mask}.", add_mask_token(KINDS[kind]()))
    assert encode_with_masks(f"{first}{mask} cat{mask}.", tokenizer) == [tokenizer.bos_token_id, *plain]
    assert encode_with_masks(f"{start}{mask}.", tokenizer).count(tokenizer.bos_token_id) == 1
    assert tokenizer.bos_token_id not in chain(*encode_parts(["a", " cat"], tokenizer))


def test_consecutive_parts_are_one_text(kind: str, saved: PreTrainedTokenizerFast) -> None:
    rng = random.Random(0)
    drawn = [
        "".join(rng.choices(["I", "cat", " ", "\n", ",", ")", "un", "ly", "|", "|"], k=8)).split("|") for _ in range(20)
    ]
    for parts in (["the cat", " sat", ", the cat"], ["I saw a c", "at", ""], [" ", "cat"], ["un", "cat", "ly"], *drawn):
        ids = encode_parts(parts, saved)
        whole = saved("".join(parts), add_special_tokens=False).input_ids
        assert saved.decode([*chain(*ids)]) == saved.decode(whole)
        assert kind == "WordPiece" or [bool(part) for part in ids] == [bool(part) for part in parts]
    ids = encode_parts(["the cat", " sat", ", the cat"], saved)
    assert [*chain(*ids)] == saved("the cat sat, the cat", add_special_tokens=False).input_ids


def test_text_that_a_tokenizer_cannot_encode_is_an_error() -> None:
    tokenizer = Tokenizer(models.WordLevel({"</s>": 0, "<unk>": 1, "un": 2, "ly": 3, "7": 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = add_mask_token(
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    )
    assert encode_with_masks("un <|mask|> ly", words) == [2, 5, 3]
    with pytest.raises(ValueError, match="cannot encode 'ly' as a part"):
        encode_with_masks("un<|mask|>ly", words)
    with pytest.raises(ValueError, match="no tokens for some characters"):
        encode_with_masks("un <|mask|> cat", words)
    with pytest.raises(ValueError, match="'ly'"):
        encode_parts(["un", "ly"], words)


def test_an_added_word_stays_a_token(tmp_path: Path) -> None:
    tokenizer, texts = llama("always"), ["I<x>saw", "<x>I"]
    tokenizer.add_tokens(["<x>"])
    expected = [tokenizer(text).input_ids for text in texts]
    add_mask_token(tokenizer).save_pretrained(tmp_path)
    assert [load_tokenizer(tmp_path)(text).input_ids for text in texts] == expected


def test_a_space_before_each_text_is_not_put_after_masks(tmp_path: Path) -> None:
    """Byte-level tokenizers with `add_prefix_space`, such as BART's."""
    backend, texts = train_tokenizer(["I saw"] * 9, 260).backend_tokenizer, ["I saw", " I", "\nI", "  I", ""]
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    expected = [tokenizer(text).input_ids for text in texts]
    tokenizer.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert [loaded(text).input_ids for text in texts] == expected
    assert loaded.decode(loaded("I<|mask|>saw <|mask|> (<|mask|>)").input_ids) == " I<|mask|>saw<|mask|> (<|mask|>)"


def test_a_class_that_drops_spaces_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = []
    monkeypatch.setattr("modeling_aogpt.tokenization.logger.warning", warnings.append)
    llama().save_pretrained(tmp_path)
    load_tokenizer(tmp_path)
    assert warnings == []
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    load_tokenizer(tmp_path)
    assert "tokenizer_class" in warnings[0]
    digits = train_tokenizer(["1234567"] * 9, 263)
    words = pre_tokenizers.Split(Regex(r"\d{1,3}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(words))
    digits.save_pretrained(tmp_path / "digits")
    load_tokenizer(tmp_path / "digits")
    path = tmp_path / "digits" / path.name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}))
    assert len(warnings) == 1
    load_tokenizer(tmp_path / "digits")
    assert len(warnings) == 2


def test_other_settings_of_a_tokenizer_are_kept(tmp_path: Path) -> None:
    tokenizer = llama_class()
    tokenizer.chat_template, tokenizer.model_max_length, tokenizer.padding_side = "{{ messages }}", 77, "left"
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|user|>"]})
    add_mask_token(tokenizer).save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.chat_template, loaded.model_max_length, loaded.padding_side) == ("{{ messages }}", 77, "left")
    assert (loaded.bos_token, loaded.eos_token, loaded.unk_token) == ("<s>", "</s>", "<unk>")
    assert loaded.decode(loaded("a<|user|>").input_ids, skip_special_tokens=True) == "a"


def test_masks_that_drop_line_breaks_are_replaced() -> None:
    tokenizer = KINDS["byte-level"]()
    tokenizer.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True, special=True)})
    tokenizer = add_mask_token(tokenizer)
    assert tokenizer.decode(tokenizer("a\n <mask>").input_ids) == "a\n<mask>"


def test_infill_keeps_the_given_text(kind: str, saved: PreTrainedTokenizerFast) -> None:
    mask, size = saved.mask_token_id, saved.mask_token_id
    sizes = {"vocab_size": size, "max_position_embeddings": 40, "eos_token_id": saved.eos_token_id}
    model = random_model(**sizes)
    output = model.infill(f"the\n{saved.mask_token}), un{saved.mask_token}ly", tokenizer=saved, lengths=[1, 2])
    first, second, third = encode_between_masks(f"the\n{saved.mask_token}), un{saved.mask_token}ly", saved)
    ids, (one, two) = output.sequences[0].tolist(), output.lengths.tolist()
    expected = [*first, *[mask] * one, *second, *[mask] * two, *third]
    assert [token for token, given in zip(ids, expected, strict=True) if given != mask] == [*first, *second, *third]


@pytest.mark.parametrize("make", [random_model, lambda **sizes: random_encoder(**sizes | {"vocab_size": 99})])
def test_models_encode_text_with_masks(make: object) -> None:
    tokenizer = add_mask_token(KINDS["WordPiece"]())
    ids = make(vocab_size=tokenizer.mask_token_id).encode_text("un<|mask|>at", tokenizer)
    assert ids.tolist() == [encode_with_masks("un<|mask|>at", tokenizer)]


def test_fill_mask_keeps_line_breaks(kind: str, saved: PreTrainedTokenizerFast) -> None:
    model = with_class(random_model(vocab_size=saved.mask_token_id, max_position_embeddings=40), AOGPTForMaskedLM)
    saved.model_input_names = ["input_ids", "attention_mask"]
    fill = pipeline("fill-mask", model=model.float(), tokenizer=saved, device=torch.device("cpu"))
    (prediction,) = fill(f"a\n{saved.mask_token}.", top_k=1)
    if kind != "WordPiece":
        assert prediction["sequence"].startswith("a\n")
    assert prediction["sequence"].endswith(".")


@pytest.mark.parametrize("collapses", [False, True])
def test_lost_spaces_are_told(collapses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = KINDS["byte-level"]()
    if collapses:  # as T5's
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    warnings: list[str] = []
    monkeypatch.setattr(infill.logger, "warning_once", warnings.append)
    encode_with_masks("the <|mask|>:\n    cat", tokenizer)
    assert len(warnings) == collapses
