# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from tests.references import random_encoder, random_model


def test_gpt2_tables_know_their_padding_and_mask() -> None:
    padded, whole = AOGPTConfig(vocab_size=50304), AOGPTConfig(vocab_size=1024)
    assert (padded.num_valid_tokens, padded.mask_token_id) == (50257, 50257)
    assert (whole.num_valid_tokens, whole.mask_token_id) == (1024, 1024)


def test_all_auto_classes_are_mapped_whatever_a_file_says() -> None:
    config = AOGPTConfig(auto_map={"AutoModel": "somebody/model--modeling_aogpt.AOGPTForAnyOrderLM"})
    assert set(config.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM"}
    assert not any("--" in name for name in config.auto_map.values())


def test_a_mask_outside_the_table_is_nothing_to_warn_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = AOGPTConfig(vocab_size=77)
    config.save_pretrained(tmp_path)
    assert AOGPTConfig.from_pretrained(tmp_path).mask_token_id == 77
    assert not [record for record in caplog.records if "mask_token_id" in record.getMessage()]


@pytest.mark.parametrize(
    ("saved", "loaded"), [(random_encoder, AOGPTForAnyOrderLM), (random_model, MDMEncoderForMaskedLM)]
)
def test_no_model_is_loaded_as_one_of_another_type(
    saved: Callable, loaded: type[PreTrainedModel], tmp_path: Path
) -> None:
    saved().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"A configuration of type .* load the model with the class that"):
        loaded.from_pretrained(tmp_path)


def test_survives_json() -> None:
    config = AOGPTConfig(
        vocab_size=99, hidden_size=32, num_attention_heads=4, position_encoding="rotary", norm_eps=1e-6
    )
    again = AOGPTConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_injection": "film"}, "target_injection='film' is not one of 'adaln', 'input', 'shared', 'per_layer'"),
        ({"position_encoding": "alibi"}, "position_encoding='alibi' is not one of"),
        ({"norm": "batch"}, "norm='batch' is not one of"),
        (
            {"hidden_size": 100, "num_attention_heads": 12},
            "hidden_size=100 cannot be split over num_attention_heads=12",
        ),
        ({"hidden_size": 36, "num_attention_heads": 12, "position_encoding": "rotary"}, "is odd"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 must be an integer of at least 1"),
        ({"vocab_size": 10.5}, "vocab_size=10.5 must be an integer"),
        ({"vocab_size": 10, "num_valid_tokens": 11}, "num_valid_tokens=11 exceeds the token table"),
        ({"vocab_size": 10, "mask_token_id": 9}, "mask_token_id=9 is a real token"),
        ({"tie_word_embeddings": True}, "lm_head_bias=False"),
        ({"vocab_size": 10, "eos_token_id": 10}, "eos_token_id=10 is no id of the token table: 0 to 9"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AOGPTConfig(**arguments)
