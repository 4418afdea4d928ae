# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderConfig
from modeling_aogpt.tokenization import MASK, add_mask_token, load_matching_tokenizer, load_tokenizer
from tests.tokenizers_of_all_kinds import byte_level, characters, llama


def word_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    """Return a word tokenizer whose first ids are the given special tokens, in this order, before the words a, b, c."""
    words = [*dict.fromkeys(special.values()), "a", "b", "c"]
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.mark.parametrize("special", [{"eos_token": "</s>"}, {"eos_token": "</s>", "mask_token": "[MASK]"}])
def test_a_loaded_tokenizer_gets_a_mask_after_all_other_ids(special: dict[str, str], tmp_path: Path) -> None:
    original = word_tokenizer(**special)
    original.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    size = len(original)
    assert (tokenizer.mask_token, tokenizer.mask_token_id, len(tokenizer)) == ("<|mask|>", size, size + 1)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == 0


def test_the_mask_of_another_model_is_not_read_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.tokenization.logger.warning", warnings.append)
    word_tokenizer(eos_token="</s>", mask_token="[MASK]").save_pretrained(tmp_path)
    load_tokenizer(tmp_path).save_pretrained(tmp_path)
    assert warnings == ["The mask of the model is <|mask|>, not [MASK]. Write <|mask|> in its inputs."]
    tokenizer = load_tokenizer(tmp_path)
    assert len(warnings) == 1
    model = AOGPTForAnyOrderLM(AOGPTConfig(vocab_size=tokenizer.mask_token_id, hidden_size=8, num_attention_heads=1))
    assert model.encode_text("b <|mask|> c", tokenizer).tolist() == [[3, 5, 4]]
    with pytest.raises(ValueError, match=r"mask of this model is <\|mask\|>, not \[MASK\]"):
        model.encode_text("b [MASK] c", tokenizer)


def test_spaces_are_kept_even_if_the_tokenizer_would_clean_them_up(tmp_path: Path) -> None:
    tokenizer = characters()
    tokenizer.clean_up_tokenization_spaces = True  # as in many published tokenizers
    tokenizer.save_pretrained(tmp_path)
    loaded, text = load_tokenizer(tmp_path), "a cat , un"
    assert loaded.decode(loaded(text).input_ids) == text
    vocab_size = loaded.mask_token_id
    model = AOGPTForAnyOrderLM(AOGPTConfig(vocab_size=vocab_size, hidden_size=8, num_attention_heads=1))
    loaded.clean_up_tokenization_spaces = True
    output = model.infill(f"{text}<|mask|> cat , un", lengths=[1], tokenizer=loaded)
    assert output.texts[0].startswith(text)
    assert output.texts[0].endswith(" cat , un")


def test_a_mask_with_the_highest_id_is_kept() -> None:
    tokenizer = word_tokenizer(eos_token="</s>")
    tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    assert add_mask_token(tokenizer) is tokenizer
    assert (tokenizer.mask_token, tokenizer.mask_token_id, len(tokenizer)) == ("[MASK]", 4, 5)


def test_an_unregistered_mask_with_the_highest_id_is_accepted() -> None:
    tokenizer = word_tokenizer(eos_token="</s>")
    tokenizer.add_tokens("<|mask|>")
    last = len(tokenizer) - 1
    assert add_mask_token(tokenizer).mask_token_id == last == len(tokenizer) - 1


def test_a_pad_token_is_kept(tmp_path: Path) -> None:
    word_tokenizer(eos_token="</s>", pad_token="<pad>").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).pad_token_id == 1


def test_loading_does_not_warn_of_long_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level()
    tokenizer.model_max_length = 4
    tokenizer.save_pretrained(tmp_path)
    warnings: list[str] = []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", warnings.append)
    load_tokenizer(str(tmp_path))
    assert warnings == []


def test_saved_truncation_and_padding_have_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = byte_level()
    tokenizer(["I saw", "the cat"], padding="max_length", truncation=True, max_length=60)
    tokenizer.save_pretrained(tmp_path)
    assert '"max_length":60' in "".join((tmp_path / "tokenizer.json").read_text().split())
    loaded = load_tokenizer(tmp_path)
    assert len(loaded("the cat " * 60).input_ids) > 60
    assert "differently" not in caplog.text


def test_the_space_before_a_mask_is_part_of_it_if_words_include_a_space() -> None:
    tokenizer = add_mask_token(byte_level())
    assert tokenizer.decode(tokenizer("a  <|mask|> cat\n<|mask|>").input_ids) == "a <|mask|> cat\n<|mask|>"
    tokenizer = add_mask_token(characters())
    assert tokenizer.decode(tokenizer("a <|mask|>").input_ids) == "a <|mask|>"


@pytest.mark.parametrize("is_lower", [False, True])
def test_added_tokens_that_are_no_longer_normalized_are_warned_of(
    is_lower: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that includes a space needs a new step, which would also change the names of these tokens."""
    warnings: list[str] = []
    monkeypatch.setattr("modeling_aogpt.tokenization.logger.warning", warnings.append)
    tokenizer = llama("always")
    tokenizer.add_tokens("saw")
    if is_lower:
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    add_mask_token(tokenizer)
    assert ["'saw'" in warning for warning in warnings] == [True] * is_lower


@pytest.mark.parametrize(
    "config", [AOGPTConfig(vocab_size=4, max_position_embeddings=7), MDMEncoderConfig(vocab_size=5)]
)
def test_a_matching_tokenizer_has_the_mask_and_the_length_of_the_model(config: AOGPTConfig, tmp_path: Path) -> None:
    word_tokenizer(eos_token="</s>").save_pretrained(tmp_path)
    tokenizer = load_matching_tokenizer(config, str(tmp_path))
    assert tokenizer.mask_token_id == config.mask_token_id == 4
    assert tokenizer.model_max_length == config.max_position_embeddings


def test_a_tokenizer_with_another_mask_than_the_model_is_an_error(tmp_path: Path) -> None:
    word_tokenizer(eos_token="</s>").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"its mask has the id 4, but the mask of the"):
        load_matching_tokenizer(AOGPTConfig(vocab_size=5), str(tmp_path))


def test_a_tokenizer_that_cannot_encode_each_text_is_an_error(tmp_path: Path) -> None:
    """Without an unknown token, as for DNA, `tokenizers` raises a plain `Exception`."""
    tokenizer = Tokenizer(models.WordLevel({"A": 0, "C": 1, "</s>": 2}))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be loaded .*Missing \[UNK\] token"):
        load_tokenizer(tmp_path)


def test_tokenizers_that_cannot_be_used_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The tokenizer 'nowhere' cannot be loaded from"):
        load_tokenizer("nowhere")
    with pytest.raises(ValueError, match=r"contains no tokenizer\. Pass the tokenizer"):
        load_tokenizer(str(tmp_path))
    word_tokenizer(unk_token="a").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no end-of-text token\. Set its"):
        load_tokenizer(str(tmp_path))
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.model.dropout = 0.1  # a text would have other tokens, and another score, in each call
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is random\. Set `dropout` to null"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(ValueError, match=r"<\|mask\|> has the id 1 instead of"):
        add_mask_token(word_tokenizer(eos_token="</s>", unk_token=MASK.content))
    gaps = Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    with pytest.raises(ValueError, match=r"instead of 10, because the ids of its other"):
        add_mask_token(PreTrainedTokenizerFast(tokenizer_object=gaps))
