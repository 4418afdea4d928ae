# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import PreTrainedModel

from modeling_aogpt import AOGPTConfig, AOGPTForAnyOrderLM, MDMEncoderForMaskedLM
from tests.references import random_encoder, random_model


def test_only_the_padded_vocabulary_of_gpt2_has_ids_that_are_not_text() -> None:
    padded, other = AOGPTConfig(vocab_size=50304), AOGPTConfig(vocab_size=1024)
    assert (padded.num_valid_tokens, padded.mask_token_id) == (50257, 50257)
    assert (other.num_valid_tokens, other.mask_token_id) == (1024, 1024)


def test_auto_map_does_not_depend_on_the_file() -> None:
    config = AOGPTConfig(auto_map={"AutoModel": "somebody/model--modeling_aogpt.AOGPTForAnyOrderLM"})
    assert set(config.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForCausalLM"}
    assert not any("--" in name for name in config.auto_map.values())


def test_a_mask_outside_the_token_table_gives_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = AOGPTConfig(vocab_size=77)
    config.save_pretrained(tmp_path)
    assert AOGPTConfig.from_pretrained(tmp_path).mask_token_id == 77
    assert not [record for record in caplog.records if "mask_token_id" in record.getMessage()]


@pytest.mark.parametrize(
    ("saved", "loaded"), [(random_encoder, AOGPTForAnyOrderLM), (random_model, MDMEncoderForMaskedLM)]
)
def test_loading_a_model_of_another_type_is_an_error(
    saved: Callable, loaded: type[PreTrainedModel], tmp_path: Path
) -> None:
    saved().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has model_type .*, but .* needs .* Load the"):
        loaded.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("saved", "settings", "message"),
    [
        (random_model, {"rope_parameters": {"rope_type": "default", "rope_theta": 3.0}}, "`rope_parameters` needs"),
        (random_encoder, {"shift_predictions": True}, "`shift_predictions` needs"),
        (random_encoder, {"max_gap_length": 3}, "`max_gap_length` needs"),
    ],
)
def test_settings_given_when_loading_are_checked(saved: Callable, settings: dict, message: str, tmp_path: Path) -> None:
    model = saved()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        type(model).from_pretrained(tmp_path, **settings)


def test_a_configuration_is_unchanged_by_saving_and_loading() -> None:
    config = AOGPTConfig(
        vocab_size=99, hidden_size=32, num_attention_heads=4, position_encoding="rotary", norm_eps=1e-6
    )
    again = AOGPTConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"target_injection": "film"},
            "`target_injection` must be one of 'adaln', 'input', 'shared', 'per_layer', 'none', but is 'film'",
        ),
        ({"position_encoding": "alibi"}, "`position_encoding` must be one of 'learned', 'rotary', but is 'alibi'"),
        ({"norm": "batch"}, "`norm` must be one of 'rmsnorm', 'layernorm', but is 'batch'"),
        (
            {"hidden_size": 100, "num_attention_heads": 12},
            r"`hidden_size` \(100\) must be a multiple of `num_attention_heads` \(12\)",
        ),
        (
            {"hidden_size": 36, "num_attention_heads": 12, "position_encoding": "rotary"},
            "'rotary'` needs an even `head_dim`, but `head_dim` is 3",
        ),
        ({"num_hidden_layers": 0}, "`num_hidden_layers` must be an integer from 1 to 1024, but is 0"),
        ({"vocab_size": 10.5}, "`vocab_size` must be an integer from 1 to .*, but is 10.5"),
        (
            {"vocab_size": 10, "num_valid_tokens": 11},
            r"`num_valid_tokens` \(11\) exceeds `vocab_size` \(10\)",
        ),
        (
            {"vocab_size": 10, "mask_token_id": 9},
            r"`mask_token_id` must be at least `num_valid_tokens` \(10\), .* but is 9",
        ),
        ({"tie_word_embeddings": True}, "Set `lm_head_bias=False`"),
        (
            {"vocab_size": 10, "eos_token_id": 10},
            "`eos_token_id` must be an id of the vocabulary, 0 to 9, or None, but is 10",
        ),
        ({"num_key_value_heads": 5}, r"`num_attention_heads` \(12\) must be a multiple of `num_key_value_heads` \(5\)"),
        ({"target_injection": "none"}, "`target_injection='none'` need `position_encoding='rotary'`"),
        ({"no_rope_layers": [0]}, "`no_rope_layers` .* need `position_encoding='rotary'`"),
        *(
            (
                {"position_encoding": "rotary", "no_rope_layers": layers},
                "`no_rope_layers` must be a list of indices of layers, 0 to 11",
            )
            for layers in ([12], [True], 3)
        ),
        (
            {"position_encoding": "rotary", "rope_parameters": 100.0},
            "`rope_parameters` must be a dictionary or None, but is 100.0",
        ),
        (
            {"position_encoding": "rotary", "rope_parameters": {"rope_type": "linear"}},
            r"`rope_parameters\['factor'\]` must be a number",
        ),
        (
            {"position_encoding": "rotary", "rope_parameters": {"rope_type": "llama3", "factor": 2}},
            r"`rope_parameters\['low_freq_factor'\]` must be a number",
        ),
        (
            {"position_encoding": "rotary", "rope_parameters": {"rope_type": "longrope"}},
            "Its `rope_type` must be one of 'default', .*'llama3'",
        ),
        (
            {"position_encoding": "rotary", "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "its `partial_rotary_factor`, if any, must be 1",
        ),
        ({"start_token_id": 60000}, "`start_token_id` must be an id of the vocabulary"),
        ({"rope_parameters": {"rope_theta": 9.0}}, "`rope_parameters` has no effect without"),
        ({"position_encoding": "rotary", "rope_parameters": {"theta": 9.0}}, "`name in rope_parameters` must be"),
        ({"rope_theta": 9.0}, "`rope_theta` has no effect without `position_encoding='rotary'`"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "`rope_scaling` has no effect without"),
    ],
)
def test_values_that_are_not_allowed_are_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AOGPTConfig(**arguments)


def test_heads_may_have_a_width_of_their_own() -> None:
    config = AOGPTConfig(hidden_size=30, num_attention_heads=4, head_dim=8)
    assert (config.head_dim, config.num_key_value_heads) == (8, 4)
    assert AOGPTConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()


def test_settings_without_effect_give_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = SimpleNamespace(warning=(messages := []).append)
    monkeypatch.setattr("modeling_aogpt.configuration_aogpt.logging.get_logger", lambda _: logger)
    AOGPTConfig(use_cache=True, num_labels=2, output_attentions=False, num_layers=3)
    assert ["num_layers" in message for message in messages] == [True]
    linear, default = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "default", "rope_theta": 10.0}
    AOGPTConfig(position_encoding="rotary", rope_theta=9.0, rope_parameters=linear)  # no contradiction
    assert len(messages) == 1
    for given in ({"rope_theta": 9.0}, {"rope_scaling": linear}):
        AOGPTConfig(position_encoding="rotary", rope_parameters=default, **given)
    assert ["rope_theta" in message for message in messages] == [False, True, True]


def test_configurations_do_not_share_rope_parameters() -> None:
    rope = {"rope_type": "default"}
    first, second = (AOGPTConfig(position_encoding="rotary", rope_parameters=rope) for _ in range(2))
    first.rope_parameters["rope_theta"] = 9.0
    assert (rope, second.rope_parameters["rope_theta"]) == ({"rope_type": "default"}, 10000.0)


def test_integers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "eos_token_id": 3}
    config = AOGPTConfig(**{name: np.int64(value) for name, value in sizes.items()})
    config.save_pretrained(tmp_path)
    assert AOGPTConfig.from_pretrained(tmp_path).to_dict() == AOGPTConfig(**sizes).to_dict()
