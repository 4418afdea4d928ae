# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Settings of generation: defaults, saving and loading, unknown names, and values that are refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, StoppingCriteriaList

from modeling_aogpt import AnyOrderGenerationConfig, AOGPTForAnyOrderLM, AOGPTForCausalLM
from modeling_aogpt.generation_config import FIELDS, NO_OP_VALUES
from tests.references import random_encoder, random_model, seeded

SETTINGS = {
    "num_steps": 3,
    "unmasking": "fixed_count",
    "schedule": "cosine",
    "do_sample": True,
    "top_p": 0.9,
    "top_p_rule": "exclusive",
    "draft_length": 3,
    "entropy_bound": 0.5,
    "threshold": 0.8,
    "output_history": True,
}


def fields_of(config: AnyOrderGenerationConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in FIELDS}


def saved_fields(folder: Path) -> dict[str, object]:
    saved = json.loads((folder / "generation_config.json").read_text())
    del saved["transformers_version"]
    return saved


# ----------------------------------------------------------------------------------------------- defaults and a call


@pytest.mark.parametrize(
    ("arguments", "defaults"),
    [
        ({"strategy": "speculative"}, {"draft_length": 4, "draft": "model"}),
        ({"num_steps": 4}, {"schedule": "linear", "unmasking": "bernoulli", "order": "random", "do_sample": True}),
        ({"num_steps": 4, "top_p": 0.5}, {"top_p_rule": "inclusive", "top_k": 0, "temperature": 1.0}),
    ],
)
def test_defaults_are_as_documented(arguments: dict, defaults: dict) -> None:
    model = random_model()
    first, second = (
        model.generate(generator=seeded(), return_dict_in_generate=True, **given)
        for given in (arguments, arguments | defaults)
    )
    assert torch.equal(first.sequences, second.sequences)
    assert (first.num_forward_passes, first.num_rows) == (second.num_forward_passes, second.num_rows)


def test_plain_generation_configs_set_defaults() -> None:
    model = random_model()
    model.generation_config = GenerationConfig(
        max_length=4, num_steps=2, unmasking="fixed_count", order="left_to_right", do_sample=False
    )
    output = model.generate(return_dict_in_generate=True)
    assert output.sequences.shape == (1, 4)
    assert output.num_forward_passes == 2
    assert output.orders.tolist() == [[0, 1, 2, 3]]
    assert model.generate(max_new_tokens=6).shape == (1, 6)
    assert model.generate(generation_config=GenerationConfig(max_length=3)).shape == (1, 3)
    assert model.generate(None, GenerationConfig(max_length=3)).shape == (1, 3)  # as in Transformers


def test_none_in_a_call_restores_the_default() -> None:
    model = random_model()
    model.generation_config = AnyOrderGenerationConfig(max_length=4, num_steps=2, unmasking="fixed_count")
    output = model.generate(num_steps=None, unmasking=None, return_dict_in_generate=True)
    assert output.num_forward_passes == 4
    assert model.generate(max_length=None).shape == (1, model.config.max_position_embeddings)


@pytest.mark.parametrize("name", [name for name, default in FIELDS.items() if default is not None])
def test_none_in_a_config_means_the_default(name: str) -> None:
    model = random_model()
    expected = model.generate(generator=seeded(), return_dict_in_generate=True).sequences
    setattr(model.generation_config, name, None)
    model.generation_config.validate()
    assert torch.equal(model.generate(generator=seeded()), expected)


def test_plain_generation_configs_are_converted() -> None:
    converted = AnyOrderGenerationConfig.from_generation_config(GenerationConfig(**SETTINGS))
    assert type(converted) is AnyOrderGenerationConfig
    assert fields_of(converted) == FIELDS | SETTINGS
    assert AnyOrderGenerationConfig.from_generation_config(converted) is converted


def test_a_call_does_not_change_the_generation_config() -> None:
    model = random_model()
    before = model.generation_config.to_dict()
    model.generate(num_steps=3, order="left_to_right", max_new_tokens=2)
    assert model.generation_config.to_dict() == before


def test_settings_without_effect_are_allowed_in_a_config() -> None:
    """A call that turns off what they belong to need not name them. Only arguments of a call must have an effect."""
    model = random_model()
    model.generation_config = AnyOrderGenerationConfig(**SETTINGS)
    assert torch.equal(
        model.generate(num_steps=None, top_p=1.0, generator=seeded()), random_model().generate(generator=seeded())
    )
    assert model.generate(unmasking="bernoulli", top_p_rule="inclusive", schedule="linear").shape == (1, 12)


def test_flags_that_are_off_need_no_other_argument() -> None:
    assert random_model().generate(output_history=False, stop_at_eos=False).shape == (1, 12)


def test_integers_of_numpy_are_accepted() -> None:
    assert AnyOrderGenerationConfig(num_steps=np.int64(2), block_length=np.int32(4)).num_steps == 2


# ------------------------------------------------------------------------------------------------- saving and loading


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    config = AnyOrderGenerationConfig(num_steps=np.int64(3), temperature=np.float32(0.5))
    config.top_k = np.int32(4)
    config.save_pretrained(tmp_path)
    assert AnyOrderGenerationConfig.from_pretrained(tmp_path) == config
    assert random_model().generate(
        generation_config=config, no_repeat_ngram_size=np.int64(2), num_steps=None, order="left_to_right"
    ).shape == (1, 12)


def test_configs_with_order_tensors_can_be_compared() -> None:
    order = torch.arange(3)[None]
    assert AnyOrderGenerationConfig(order=order) == AnyOrderGenerationConfig(order=order.clone())
    assert AnyOrderGenerationConfig(order=order) != AnyOrderGenerationConfig()
    restored = AnyOrderGenerationConfig.from_dict(AnyOrderGenerationConfig(order=order).to_dict())
    assert torch.equal(restored.order, order)


def test_temperature_zero_is_allowed_without_sampling() -> None:
    """Some published models have this setting."""
    model = random_model()
    greedy = model.generate(order="left_to_right", do_sample=False)
    assert torch.equal(model.generate(order="left_to_right", do_sample=False, temperature=0), greedy)
    with pytest.raises(ValueError, match=r"`temperature` must be .* Set"):
        model.generate(temperature=0)


@pytest.mark.parametrize("make", [random_model, random_encoder])
def test_config_is_saved_with_the_model_and_loaded_as_itself(make: Callable, tmp_path: Path) -> None:
    model = make()
    model.generation_config = AnyOrderGenerationConfig(**SETTINGS)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded.generation_config) is AnyOrderGenerationConfig
    assert fields_of(loaded.generation_config) == FIELDS | SETTINGS
    output = loaded.generate(generator=seeded(), return_dict_in_generate=True)
    assert output.num_forward_passes == 3
    assert torch.equal(output.sequences, model.generate(generator=seeded()))


def test_plain_generation_configs_are_saved_and_loaded_as_any_order_ones(tmp_path: Path) -> None:
    model = random_model()
    model.generation_config = GenerationConfig(**SETTINGS)
    model.save_pretrained(tmp_path)
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded.generation_config) is AnyOrderGenerationConfig
    assert fields_of(loaded.generation_config) == FIELDS | SETTINGS


def test_only_values_that_differ_from_the_defaults_are_saved(tmp_path: Path) -> None:
    model = random_model()
    model.save_pretrained(tmp_path)
    assert saved_fields(tmp_path) == {}
    model.generation_config = AnyOrderGenerationConfig(num_steps=3, top_k=0, order="random", eos_token_id=5)
    model.save_pretrained(tmp_path)
    assert saved_fields(tmp_path) == {"num_steps": 3, "order": "random", "eos_token_id": 5}


@pytest.mark.parametrize("make", [random_model, random_encoder])
def test_new_models_have_the_default_config_with_their_special_tokens(make: Callable) -> None:
    config = make(eos_token_id=5, pad_token_id=6).generation_config
    assert type(config) is AnyOrderGenerationConfig
    assert fields_of(config) == FIELDS | {"eos_token_id": 5, "pad_token_id": 6}


def test_a_changed_setting_is_saved_and_loaded_repeatedly(tmp_path: Path) -> None:
    """Transformers restores only fields it knows in configs that it derived from the model's configuration."""
    model = random_model()
    model.generation_config.num_steps = 2
    for _ in range(2):
        model.save_pretrained(tmp_path)
        model = AOGPTForAnyOrderLM.from_pretrained(tmp_path)
    assert model.generation_config.num_steps == 2
    assert model.generate(return_dict_in_generate=True).num_forward_passes <= 2


@pytest.mark.parametrize("kind", [GenerationConfig, AnyOrderGenerationConfig])
def test_from_pretrained_takes_a_generation_config(kind: type[GenerationConfig], tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path)
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path, generation_config=kind(num_steps=3))
    assert type(loaded.generation_config) is AnyOrderGenerationConfig
    assert fields_of(loaded.generation_config) == FIELDS | {"num_steps": 3}


def test_the_config_is_loaded_from_the_folder_of_the_model(tmp_path: Path) -> None:
    model = random_model()
    model.save_pretrained(tmp_path)
    model.generation_config.num_steps = 3
    model.save_pretrained(tmp_path / "sub")
    assert AOGPTForAnyOrderLM.from_pretrained(tmp_path, subfolder="sub").generation_config.num_steps == 3


def test_missing_file_gives_the_defaults(tmp_path: Path) -> None:
    random_model(eos_token_id=5).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    config = AOGPTForAnyOrderLM.from_pretrained(tmp_path).generation_config
    assert type(config) is AnyOrderGenerationConfig
    assert fields_of(config) == FIELDS | {"eos_token_id": 5}


def test_internal_fields_in_a_file_are_ignored(tmp_path: Path) -> None:
    """Some versions of Transformers write them."""
    random_model().save_pretrained(tmp_path)
    content = {"num_steps": 3, "_commit_hash": "0" * 40, "_from_model_config": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    model = AOGPTForAnyOrderLM.from_pretrained(tmp_path)
    assert fields_of(model.generation_config) == FIELDS | {"num_steps": 3}
    assert model.generate().shape == (1, 12)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        ('{"num_steps": 3', OSError, "generation_config.json' is not a valid JSON"),
        ('{"num_step": 3}', ValueError, "Unknown generation setting `num_step`. Did"),
        ('{"num_steps": 0}', ValueError, "`num_steps` must be an integer of at least 1"),
    ],
    ids=["no JSON", "unknown name", "invalid value"],
)
def test_damaged_files_are_reported(content: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    random_model().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(error, match=re.escape(message)):
        AOGPTForAnyOrderLM.from_pretrained(tmp_path)


def test_several_samples_are_saved_for_all_classes(tmp_path: Path) -> None:
    """Without `do_sample`, Transformers does not load a causal LM that returns several sequences."""
    model = random_model()
    model.generation_config = AnyOrderGenerationConfig(num_return_sequences=3)
    model.save_pretrained(tmp_path)
    assert saved_fields(tmp_path) == {"num_return_sequences": 3, "do_sample": True}
    causal = AOGPTForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert causal.generate(torch.tensor([[3, 1]]), max_new_tokens=2).shape == (3, 4)


def test_order_tensors_of_another_class_are_used() -> None:
    """With `trust_remote_code`, a model has a generation config whose class is a copy of the one of this package."""

    class Copy(GenerationConfig):
        def to_diff_dict(self) -> dict:
            return {"order": self.order.tolist()}

    order = torch.arange(11, -1, -1)[None]
    output = random_model().generate(generation_config=Copy(order=order), return_dict_in_generate=True)
    assert torch.equal(output.orders, order)


def test_order_tensors_work_but_are_not_saved(tmp_path: Path) -> None:
    model, order = random_model(), torch.arange(11, -1, -1)[None]
    model.generation_config = AnyOrderGenerationConfig(order=order)
    assert torch.equal(model.generate(return_dict_in_generate=True).orders, order)
    assert '"order": [' in repr(model.generation_config)
    for save in (model.save_pretrained, model.generation_config.save_pretrained):
        with pytest.raises(ValueError, match="`order` is a tensor, which cannot be saved"):
            save(tmp_path)
    assert not (tmp_path / "generation_config.json").exists()


# ------------------------------------------------------------------------------------------------------ refused names


def convert(**settings: object) -> AnyOrderGenerationConfig:
    return AnyOrderGenerationConfig.from_generation_config(GenerationConfig(**settings))


@pytest.mark.parametrize("make", [AnyOrderGenerationConfig, convert])
@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("num_step", " Did you mean `num_steps`?"),
        ("temprature", " Did you mean `temperature`?"),
        ("block_size", " Did you mean `block_length`?"),
        ("gen_length", " Did you mean `max_new_tokens`?"),
        ("remasking", " Did you mean `order`?"),
        ("steps", " Did you mean `num_steps`?"),
        *((name, " See AnyOrderGenerationConfig for its settings.") for name in ("cfg_scale", "stride_length", "eps")),
        ("frobnicate", " See AnyOrderGenerationConfig for its settings."),
    ],
)
def test_unknown_settings_suggest_the_nearest_known_name(make: Callable, name: str, suggestion: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"Unknown generation setting `{name}`.{suggestion}") + "$"):
        make(**{name: 3})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_step": 3}, "`generate` got the unknown argument"),
        ({"temprature": 0.5}, "`generate` got the unknown argument"),
        ({"generators": 3}, "`generate` got the unknown argument"),
        ({"num_beam": 4}, "`generate` got the unknown argument"),
        ({"cfg_scale": 4}, "unknown argument `cfg_scale`. See"),
        ({"seed": 0}, "`generate` takes no `seed`. Use"),
        ({"position_ids": torch.zeros(1, 2)}, "unknown argument `position_ids`"),
        ({"output_scores": True}, "`generate` does not support"),
        ({"stop_strings": "a"}, "`generate` does not support"),
        ({"stopping_criteria": [len]}, "`generate` does not support"),
        ({"assistant_model": random_model()}, "`generate` does not support"),
        ({"use_cache": False}, "`generate` does not support"),
        ({"use_cache": "no"}, "`generate` does not support `use_cache='no'`."),
        ({"generation_config": GenerationConfig(num_beams=4)}, "The generation config cannot be used."),
        ({"generation_config": GenerationConfig(output_attentions=True)}, "The generation config cannot be used."),
    ],
)
def test_unknown_and_unsupported_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        random_model().generate(**arguments)


def test_arguments_that_change_nothing_are_accepted() -> None:
    """Arguments of Transformers at the value of what happens anyway. Other values are refused."""
    model = random_model()
    expected = model.generate(generator=seeded())
    for name, value in NO_OP_VALUES.items():
        if name in FIELDS:
            continue
        for accepted in (value, None):
            assert torch.equal(model.generate(generator=seeded(), **{name: accepted}), expected)
        with pytest.raises(
            ValueError,
            match=f"`generate` does not support `{name}=77`",
        ):
            model.generate(**{name: 77})
    assert {"use_cache", "num_beams", "length_penalty", "synced_gpus"} <= NO_OP_VALUES.keys() - FIELDS.keys()
    config = GenerationConfig(num_beams=1, repetition_penalty=1.0, use_cache=True)
    assert torch.equal(model.generate(generator=seeded(), generation_config=config, stopping_criteria=None), expected)
    assert torch.equal(model.generate(generator=seeded(), stopping_criteria=StoppingCriteriaList()), expected)


def test_special_token_arguments_of_transformers_are_accepted() -> None:
    model = random_model()
    expected = model.generate(generator=seeded())
    assert torch.equal(model.generate(generator=seeded(), pad_token_id=9, eos_token_id=None, use_cache=True), expected)
    with torch.no_grad():
        model.lm_head.bias[[3, 4]] += 100
    arguments = {"order": "left_to_right", "stop_at_eos": True, "eos_token_id": [3, 4]}
    assert model.generate(pad_token_id=9, **arguments)[0, 1:].tolist() == [9] * 11
    model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 8
    assert model.generate(**arguments)[0, 1:].tolist() == [8] * 11


# ----------------------------------------------------------------------------------------------------- refused values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_steps": 0}, "`num_steps` must be an integer of at least 1"),
        ({"num_steps": 2.5}, "`num_steps` must be an integer of at least 1"),
        ({"num_steps": True}, "`num_steps` must be an integer of at least 1"),
        ({"top_k": -1}, "`top_k` must be an integer of at least 0, but"),
        ({"pad_token_id": -1}, "`pad_token_id` must be an integer of at least"),
        ({"num_return_sequences": 0}, "`num_return_sequences` must be an integer of"),
        ({"block_length": 0}, "`block_length` must be an integer of at least"),
        ({"stride": 2.5}, "`stride` must be an integer of at least 1"),
        ({"temperature": True}, "`temperature` must be"),
        ({"temperature": 0}, "`temperature` must be"),
        ({"temperature": -1.0}, "`temperature` must be"),
        ({"temperature": float("nan")}, "`temperature` must be"),
        ({"temperature": float("inf")}, "`temperature` must be"),
        ({"temperature": "1"}, "`temperature` must be"),
        ({"top_p": "a"}, "`top_p` must be a number above 0"),
        ({"top_p": 0.0}, "`top_p` must be a number above 0"),
        ({"top_p": 1.1}, "`top_p` must be a number above 0"),
        ({"schedule": "square"}, "`schedule` must be one of 'linear', 'cosine'"),
        ({"suppress_tokens": 3}, "`suppress_tokens` must be a list of token"),
        ({"suppress_tokens": [1.5]}, "`suppress_tokens` must be a list of token"),
        ({"unmasking": "all"}, "`unmasking` must be one of 'bernoulli'"),
        ({"order": "upwards"}, "'margin', 'entropy', a Tensor, but is"),
        ({"order": np.zeros((1, 12))}, "'entropy', a Tensor, but is array"),
        ({"do_sample": "false"}, "`do_sample` must be True or False, but is"),
        ({"stop_at_eos": 1}, "`stop_at_eos` must be True or False, but is 1"),
        ({"output_history": "no"}, "`output_history` must be True or False, but"),
        ({"return_dict_in_generate": 1}, "`return_dict_in_generate` must be True or"),
        ({"max_length": 4, "max_new_tokens": 4}, "`max_length` (4) and `max_new_tokens` (4) are"),
    ],
)
def test_invalid_values_are_refused(arguments: dict, message: str) -> None:
    """In a call, and where a configuration is made or changed."""
    for refuse in (random_model().generate, AnyOrderGenerationConfig, AnyOrderGenerationConfig().update):
        with pytest.raises(ValueError, match=re.escape(message)):
            refuse(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eos_token_id": [3, 11]}, "`eos_token_id` must be one or several ids of"),
        ({"eos_token_id": 2.5}, "`eos_token_id` must be one or several ids of"),
        ({"eos_token_id": []}, "`eos_token_id` must be one or several ids of"),
        ({"pad_token_id": 11, "eos_token_id": 3}, "`pad_token_id` must be an id of the"),
    ],
)
def test_special_tokens_outside_the_vocabulary_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        random_model().generate(stop_at_eos=True, order="left_to_right", **arguments)


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ({"eos_token_id": 3}, "`stop_at_eos`, `min_length` or `min_new_tokens`"),
        ({"draft": "prompt_lookup"}, "`strategy='speculative'`"),
        ({"draft_length": 8, "strategy": "parallel"}, "`strategy='speculative'`"),
        ({"entropy_bound": 0.5}, "`unmasking='entropy_bound'`"),
        ({"threshold": 0.0}, "`unmasking='threshold'`"),
        ({"schedule": "cosine"}, "`num_steps`"),
        ({"schedule": "linear", "unmasking": "entropy_bound"}, "`num_steps`"),
        ({"unmasking": "fixed_count"}, "`num_steps`"),
        ({"unmasking": "bernoulli", "order": "entropy"}, "`num_steps`"),
        ({"unmasking": "fixed_count", "strategy": "speculative"}, "`num_steps`"),
        ({"top_p_rule": "exclusive"}, "`top_p` below 1"),
        ({"output_history": True}, "`return_dict_in_generate=True`"),
    ],
)
def test_arguments_without_effect_are_refused(arguments: dict, needed: str) -> None:
    name = next(iter(arguments))
    message = f"`{name}` has no effect without {needed}. Set {needed}, or remove `{name}`."
    with pytest.raises(ValueError, match=re.escape(message)):
        random_model().generate(**arguments)


def test_settings_of_draws_give_a_warning_without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    model, messages, greedy = random_model(), [], {"do_sample": False, "order": "left_to_right"}
    monkeypatch.setattr("modeling_aogpt.generation_config.logger.warning_once", messages.append)
    model.generate(temperature=0.5, top_k=0, top_p=1.0, min_p=0.1, **greedy)
    assert [message.split()[0] for message in messages] == ["`temperature`", "`min_p`"]
    model.generate(temperature=0, **greedy)
    model.generate(temperature=0.5, top_k=2)
    assert len(messages) == 2


def test_several_greedy_sequences_cannot_be_saved(tmp_path: Path) -> None:
    """Transformers could not load them, so AutoModelForCausalLM could not load the folder."""
    config = AnyOrderGenerationConfig(do_sample=False, num_return_sequences=2)
    with pytest.raises(ValueError, match=r"`num_return_sequences`.*saved"):
        config.save_pretrained(tmp_path)
