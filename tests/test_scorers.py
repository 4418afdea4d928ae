# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlavaConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from common.models import identity_of_configs, identity_of_weights, longest_sequence
from eval.benchmarks import speed
from eval.benchmarks.contenders import load_causal_lm
from eval.journal import score_sequences
from eval.judging import Judge
from eval.scorers import AnyOrderScorer, CausalScorer, load_scorer
from modeling_aogpt import (
    AOGPTForAnyOrderLM,
    DataCollatorForAnyOrderLM,
    MDMEncoderForMaskedLM,
)
from modeling_aogpt.loading import load_model
from tests.references import random_encoder, random_model, remove_weight, seeded
from training.conversion.causal_lm import convert

IDS = torch.arange(40).view(4, 10) * 7 % 13


@pytest.fixture
def encoder() -> MDMEncoderForMaskedLM:
    return random_encoder(vocab_size=17, num_hidden_layers=1, initializer_range=0.5).float()


def batch() -> dict[str, torch.Tensor]:
    return DataCollatorForAnyOrderLM(left_to_right_fraction=0.0, seed=3)([{"input_ids": ids} for ids in IDS])


@pytest.mark.parametrize("num_ranks", [0, 4])
def test_measures_of_a_decoder(tiny_model: AOGPTForAnyOrderLM, num_ranks: int) -> None:
    scorer, given = AnyOrderScorer(tiny_model, ensemble_size=3, num_ranks=num_ranks), batch()
    expected = {
        "left_to_right": tiny_model.log_likelihood(IDS),
        "any_order": tiny_model.log_likelihood(IDS, orders=given["orders"]),
        "ensemble": tiny_model.log_likelihood(
            IDS, orders="random", ensemble_size=3, num_ranks=num_ranks or None, generator=seeded(1)
        ),
    }
    found = {measure: scorer.negative_log_likelihood(measure, given, seeded(1)) for measure in scorer.measures}
    for measure, output in expected.items():
        assert torch.allclose(found[measure], -output.log_likelihood, rtol=1e-6), measure
    assert len({round(values.sum().item(), 3) for values in found.values()}) == 3


def test_measures_of_an_encoder(encoder: MDMEncoderForMaskedLM) -> None:
    scorer = AnyOrderScorer(encoder, num_times=6)
    expected = {
        "left_to_right": encoder.log_likelihood(IDS, orders="left_to_right"),
        "any_order": encoder.log_likelihood(IDS, num_times=6, generator=seeded(1)),
    }
    for measure, output in expected.items():
        found = scorer.negative_log_likelihood(measure, batch(), seeded(1))
        assert torch.allclose(found, -output.log_likelihood, rtol=1e-6), measure


@pytest.mark.parametrize("measure", ["left_to_right", "any_order"])
def test_a_start_token_at_the_beginning_of_packed_text_is_scored(measure: str) -> None:
    model = random_model(start_token_id=3, max_position_embeddings=8).float()
    scorer, sequences = AnyOrderScorer(model), [[3, 1, 4, 1, 5, 9, 2, 6], [1, 3, 5]]
    scores = score_sequences(scorer, sequences, measure, 1, 0, 2)
    features = [{"input_ids": ids, "order_seed": index} for index, ids in enumerate(sequences)]
    orders = DataCollatorForAnyOrderLM(pad_token_id=0, left_to_right_fraction=0.0)(features)["orders"]
    for ids, order, score in zip(sequences, orders.tolist(), scores, strict=True):
        order = sorted(order) if measure == "left_to_right" else order
        order = [*(1 + position for position in order if position < len(ids)), 0]
        expected = model.log_likelihood(torch.tensor([[3, *ids]]), orders=torch.tensor([order])).log_likelihood.item()
        assert -score == pytest.approx(expected, rel=1e-4)


def test_scores_of_a_causal_model_in_bfloat16_are_computed_in_float32() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 13, "n_positions": 10, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).bfloat16().eval()
    with torch.no_grad():
        logits = model(IDS[:, :-1]).logits.float()
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), IDS[:, 1:], reduction="none").sum(1)
    found = CausalScorer(model).negative_log_likelihood("left_to_right", batch(), seeded(1))
    torch.testing.assert_close(found, expected.double(), rtol=1e-6, atol=0)


def test_seeds_of_an_encoder(encoder: MDMEncoderForMaskedLM) -> None:
    scorer, sequences = AnyOrderScorer(encoder), IDS.tolist()
    one, same, other = (score_sequences(scorer, sequences, "any_order", 2, seed, 4) for seed in (0, 0, 1))
    assert one.tolist() == same.tolist()
    assert (one != other).all()
    single = score_sequences(scorer, sequences, "any_order", 1, 0, 4)
    assert (one != single).all()  # the second pass draws other masks than the first


@pytest.mark.parametrize(
    "load",
    [
        lambda name: load_scorer(name, torch.float32, torch.device("cpu")),
        load_model,
        lambda name: speed.measure(speed.SpeedArguments(name, device="cpu"), "command"),
        lambda name: convert(name, Path(name) / "out"),
        lambda name: Judge(name, torch.device("cpu")),
        lambda name: load_causal_lm(name, 9),
    ],
    ids=["zero_shot", "generative", "speed", "convert_causal_lm", "judge", "causal_lm"],
)
def test_missing_weights_are_an_error(
    load: Callable[[str], object],
    tiny_model: AOGPTForAnyOrderLM,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    is_causal = request.node.callspec.id in ("convert_causal_lm", "judge", "causal_lm")
    special = {"bos_token_id": 13, "eos_token_id": 13}
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=10, n_embd=8, n_layer=1, n_head=1, **special))
    (gpt2 if is_causal else tiny_model).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    lost = "transformer.h.0.mlp.c_fc.weight" if is_causal else "model.layers.1.mlp.up_proj.weight"
    remove_weight(tmp_path, lost)
    with pytest.raises(ValueError, match=rf"do not match its configuration: .*{lost}"):
        load(str(tmp_path))


def test_identity_of_weights_does_not_depend_on_shards(tiny_model: AOGPTForAnyOrderLM, tmp_path: Path) -> None:
    def identity(folder: str, **options: object) -> str:
        tiny_model.save_pretrained(tmp_path / folder, **options)
        return identity_of_weights(str(tmp_path / folder))

    whole = identity("whole")
    assert identity("shards", max_shard_size="2KB") == whole
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    with torch.no_grad():
        tiny_model.lm_head.bias[0] += 1
    assert identity("shards", max_shard_size="2KB") != whole  # one number of one tensor
    file = tmp_path / "whole/model.safetensors"
    weights = load_file(file)
    for other in (
        {"lm_head.bias": weights["lm_head.bias"][None]},  # the same bytes in another shape,
        {"lm_head.bias": weights["lm_head.bias"].view(torch.int32)},  # of another type
        {"another.bias": weights["lm_head.bias"], "lm_head.bias": weights["lm_head.bias"][:0]},  # and name
    ):
        save_file(weights | other, file)
        assert identity_of_weights(str(file.parent)) != whole
    save_file({"scale": torch.tensor(2.0), "flag": torch.tensor(True), "half": torch.ones(3).bfloat16()}, file)
    assert identity_of_weights(str(file.parent)) != whole
    old_format = [tmp_path / str(number) / "pytorch_model.bin" for number in range(2)]
    for number, path in enumerate(old_format):
        path.parent.mkdir()
        path.write_bytes(bytes([number]))
    assert len({identity_of_weights(str(path.parent)) for path in old_format}) == 2
    file.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"weights of .* are missing or damaged"):
        identity_of_weights(str(file.parent))


def test_identity_of_an_adapter_depends_on_its_settings_and_base(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder, name in ((base, "model"), (adapter, "adapter_model")):
        folder.mkdir()
        save_file({"weight": torch.ones(2)}, folder / f"{name}.safetensors")
    found = set()
    for alpha, weight in ((4, 1.0), (8, 1.0), (8, 2.0)):
        settings = {"base_model_name_or_path": str(base), "lora_alpha": alpha}
        (adapter / "adapter_config.json").write_text(json.dumps(settings))
        save_file({"weight": torch.full((2,), weight)}, base / "model.safetensors")
        found.add(identity_of_weights(str(adapter)))
    assert len(found) == 3
    before = identity_of_configs(str(adapter))
    (base / "config.json").write_text("{}")
    assert identity_of_configs(str(adapter)) != before


def test_longest_sequence_is_that_of_the_text_model() -> None:
    assert longest_sequence(GPT2Config(n_positions=7)) == 7
    assert longest_sequence(LlavaConfig(text_config=LlamaConfig(max_position_embeddings=7))) == 7
    assert longest_sequence(MambaConfig()) is None


def test_kinds_of_models(encoder: MDMEncoderForMaskedLM, tiny_model: AOGPTForAnyOrderLM, tmp_path: Path) -> None:
    arguments = torch.float32, torch.device("cpu")
    for model in (encoder, tiny_model):
        model.save_pretrained(tmp_path)
        scorer = load_scorer(str(tmp_path), *arguments, num_times=6)
        assert isinstance(scorer, AnyOrderScorer)
        assert scorer.is_encoder == (model is encoder)
        assert type(scorer.model) is type(model)
        assert scorer.num_times == 6
        assert not scorer.model.training
    BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
        tmp_path / "vision"
    )
    text = (tmp_path / "vision/config.json").read_text().replace('"bert"', '"vit"')
    (tmp_path / "vision/config.json").write_text(text)
    with pytest.raises(ValueError, match=r"cannot be evaluated, because it is a model of"):
        load_scorer(str(tmp_path / "vision"), *arguments)


SIZES = {"vocab_size": 18, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kinds", [(BertConfig, BertForMaskedLM), (RobertaConfig, RobertaForMaskedLM)])
def test_models_that_attend_to_later_tokens_are_refused(
    kinds: tuple, dtype: torch.dtype, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """Transformers has causal classes for these encoders; they are causal with `is_decoder=True`."""
    config_class, model_class = kinds
    torch.manual_seed(0)
    model_class(config_class(**SIZES, initializer_range=0.5)).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    message = rf"\({config_class.model_type}\) has no perplexity, because it is not causal"
    with pytest.raises(ValueError, match=message):
        load_scorer(str(tmp_path), dtype, torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        Judge(str(tmp_path), torch.device("cpu"), dtype)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_decoder": True}))
    assert isinstance(load_scorer(str(tmp_path), dtype, torch.device("cpu")), CausalScorer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("config_class", [GPT2Config, LlamaConfig, MixtralConfig, MambaConfig])
def test_causal_models_are_accepted(config_class: type, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = config_class(**SIZES, num_key_value_heads=2, initializer_range=0.5)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    scorer = load_scorer(str(tmp_path), dtype, torch.device("cpu"))
    assert isinstance(scorer, CausalScorer)
