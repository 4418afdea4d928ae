# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Common uses of Transformers models that no other test file covers."""

import copy
import pickle
from importlib.metadata import version
from pathlib import Path

import accelerate
import pytest
import torch
from accelerate.utils import calculate_maximum_sizes
from packaging.version import Version
from safetensors import safe_open
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, set_seed

from modeling_aogpt import (
    AOGPTConfig,
    AOGPTForAnyOrderLM,
    AOGPTForCausalLM,
    AOGPTForMaskedLM,
    DataCollatorForAnyOrderLM,
    MDMEncoderForMaskedLM,
)
from modeling_aogpt.causal import CACHE_NAME
from modeling_aogpt.orders import random_orders
from tests.references import random_encoder, random_model, with_class

MASK = 11


@pytest.fixture
def any_order() -> AOGPTForAnyOrderLM:
    return random_model(position_encoding="rotary")


@pytest.fixture
def masked(any_order: AOGPTForAnyOrderLM) -> AOGPTForMaskedLM:
    return with_class(any_order, AOGPTForMaskedLM)


@pytest.fixture
def encoder() -> MDMEncoderForMaskedLM:
    return random_encoder()


# ---------------------------------------------------------------------------------------- generation of Transformers


def continue_text(model: AOGPTForCausalLM, prompt: torch.LongTensor, **options: object) -> torch.LongTensor:
    settings = {"max_length": 12, "do_sample": False, "pad_token_id": 0, "disable_compile": True} | options
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)


def test_assisted_generation_equals_greedy_decoding(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    """It verifies drafts over several rows at once, and crops the cache after rejected ones."""
    expected = continue_text(causal, ids[:1, :3])
    torch.manual_seed(7)
    assistant = AOGPTForCausalLM(causal.config).double().eval()
    rejected_often = continue_text(causal, ids[:1, :3], assistant_model=assistant)
    accepted = continue_text(causal, ids[:1, :3], assistant_model=copy.deepcopy(causal))
    # Prompt lookup of older versions needs an end-of-text token, here one that greedy decoding does not generate.
    eos = (set(range(11)) - set(expected[0].tolist())).pop()
    looked_up = continue_text(causal, ids[:1, :3], prompt_lookup_num_tokens=2, eos_token_id=eos)
    for result in (rejected_often, accepted, looked_up):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 3}, {"num_beams": 2, "do_sample": True}])
def test_every_cache_generates_the_same(causal: AOGPTForCausalLM, ids: torch.LongTensor, options: dict) -> None:
    results = []
    for implementation in ("dynamic", "static"):
        set_seed(3)
        results.append(continue_text(causal, ids[:, :4], cache_implementation=implementation, **options))
    assert torch.equal(*results)


def test_a_cache_can_be_reused_in_the_next_call(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    first = continue_text(causal, ids[:1, :3], max_length=7, return_dict_in_generate=True)
    prompt = torch.cat((first.sequences, torch.tensor([[5]])), dim=1)
    result = continue_text(causal, prompt, **{CACHE_NAME: first[CACHE_NAME]})
    assert torch.equal(result, continue_text(causal, prompt))


# ------------------------------------------------------------------------------------------------ compile and export


def test_every_class_compiles_without_graph_breaks(
    causal: AOGPTForCausalLM, masked: AOGPTForMaskedLM, encoder: MDMEncoderForMaskedLM, ids: torch.LongTensor
) -> None:
    masked_ids = ids.masked_fill(ids % 3 == 0, MASK)
    for model, inputs in ((causal, ids), (masked, masked_ids), (encoder, masked_ids)):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        logits, expected = compiled(inputs).logits, model(inputs).logits
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12, equal_nan=True)


def test_forward_passes_can_be_exported(
    any_order: AOGPTForAnyOrderLM, masked: AOGPTForMaskedLM, encoder: MDMEncoderForMaskedLM, ids: torch.LongTensor
) -> None:
    """The batch size is dynamic, and the orders are an input."""
    batch = {0: torch.export.Dim("batch", min=1, max=1024)}
    orders = random_orders(3, 12, torch.Generator().manual_seed(2))
    program = torch.export.export(
        any_order, (ids, orders), dynamic_shapes={"input_ids": batch, "orders": batch}, strict=False
    )
    for size in (3, 2, 1):  # three sequences have more rows than the model has positions, and one does not
        expected = any_order(ids[:size], orders[:size]).logits
        torch.testing.assert_close(program.module()(ids[:size], orders[:size]).logits, expected, rtol=0, atol=1e-12)
    masked_ids = ids.masked_fill(ids % 3 == 0, MASK)
    for model in (masked, encoder):
        exported = torch.export.export(model, (masked_ids,), strict=False).module()
        torch.testing.assert_close(exported(masked_ids).logits, model(masked_ids).logits, rtol=0, atol=1e-12)


def test_passes_run_without_values(
    any_order: AOGPTForAnyOrderLM, masked: AOGPTForMaskedLM, causal: AOGPTForCausalLM, encoder: MDMEncoderForMaskedLM
) -> None:
    """On the meta device and with fake tensors, as tools do that estimate memory and operations."""
    for model in (any_order, masked, causal, encoder):
        copied, ids = copy.deepcopy(model).to("meta"), torch.zeros(2, 12, dtype=torch.long, device="meta")
        output = copied(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        assert output.loss.is_meta
        assert output.logits.shape[:2] == (2, 12)
        with FakeTensorMode(allow_non_fake_inputs=True):
            ids = torch.zeros(2, 12, dtype=torch.long)
            output = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
        assert isinstance(output.loss, FakeTensor)


# ------------------------------------------------------------------------------------------- adapters, quantization


def test_lora_adapters_train_save_load_and_merge(
    any_order: AOGPTForAnyOrderLM, ids: torch.LongTensor, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    orders = random_orders(3, 12, torch.Generator().manual_seed(2))
    before = any_order(ids, orders).logits
    settings = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "up_proj"], lora_alpha=16)
    adapted = peft.get_peft_model(copy.deepcopy(any_order), settings).double()
    torch.testing.assert_close(adapted(input_ids=ids, orders=orders).logits, before)
    trained = [name for name, parameter in adapted.named_parameters() if parameter.requires_grad]
    assert len(trained) == 12
    assert all("lora_" in name for name in trained)
    optimizer = torch.optim.Adam((p for p in adapted.parameters() if p.requires_grad), lr=0.03)
    losses = []
    for _ in range(8):
        loss = adapted(input_ids=ids, orders=orders, labels=ids).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1
    adapted.eval()
    after = adapted(input_ids=ids, orders=orders).logits
    filled = adapted.generate(ids.masked_fill(ids % 3 == 0, MASK), do_sample=False, order="left_to_right")
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(any_order), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids, orders=orders).logits, after)
    merged = loaded.merge_and_unload()
    assert type(merged) is AOGPTForAnyOrderLM
    torch.testing.assert_close(merged(ids, orders).logits, after)
    assert torch.equal(
        merged.generate(ids.masked_fill(ids % 3 == 0, MASK), do_sample=False, order="left_to_right"), filled
    )


def test_lora_of_the_causal_lm_leaves_the_head_unchanged(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(causal), settings)
    assert not any("lm_head" in name for name, parameter in adapted.named_parameters() if parameter.requires_grad)
    assert torch.equal(continue_text(adapted, ids[:, :4]), continue_text(causal, ids[:, :4]))


def test_weights_can_be_quantized_to_8_bits(
    any_order: AOGPTForAnyOrderLM, ids: torch.LongTensor, tmp_path: Path
) -> None:
    """With the `quantization_config` of Transformers, on the CPU."""
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    any_order.float().save_pretrained(tmp_path)
    quantized = AutoModel.from_pretrained(tmp_path, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()))
    weight = quantized.model.layers[0].self_attn.q_proj.weight
    assert type(weight) is not torch.nn.Parameter
    plain, rounded = any_order.log_likelihood(ids).log_likelihood, quantized.log_likelihood(ids).log_likelihood
    assert 0 < (plain - rounded).abs().max() < 0.05 * plain.abs().max()
    masked_ids = ids.masked_fill(ids % 3 == 0, MASK)
    assert not (quantized.generate(masked_ids, num_steps=2) == MASK).any()


@pytest.mark.skipif(Version(version("transformers")) < Version("5.23"), reason="older versions take no list of layers")
def test_hidden_states_of_selected_layers_are_returned(causal: AOGPTForCausalLM, ids: torch.LongTensor) -> None:
    all_states = causal(ids, output_hidden_states=True).hidden_states
    selected = causal(ids, output_hidden_states=[1]).hidden_states
    assert torch.equal(selected[1], all_states[1])
    assert selected[0] is None


# --------------------------------------------------------------------------------------------- memory, files, copies


def test_memory_can_be_estimated_without_weights() -> None:
    """This is how `accelerate estimate-memory` and `device_map="auto"` work."""
    config = AOGPTConfig()
    for auto_class in (AutoModel, AutoModelForMaskedLM, AutoModelForCausalLM):
        with accelerate.init_empty_weights():
            model = auto_class.from_config(config)
        total, (largest, names) = calculate_maximum_sizes(model)
        assert total == 4 * sum(parameter.numel() for parameter in model.parameters()) == 4 * 170_605_952
        assert largest == 4 * (50304 * 768 + 50304)  # the head and its bias
        assert names == ["lm_head"]
    if Version(version("accelerate")) < Version("1.14"):
        pytest.skip("older versions split the first block that does not fit, in spite of `no_split_module_classes`")
    device_map = accelerate.infer_auto_device_map(
        model, max_memory={0: 500_000_000, "cpu": 10**9}, no_split_module_classes=model._no_split_modules
    )
    assert set(device_map.values()) == {0, "cpu"}
    assert not [name for name in device_map if name.startswith("model.layers.") and name.count(".") > 2]


def test_models_are_saved_and_loaded_in_bfloat16(
    any_order: AOGPTForAnyOrderLM, ids: torch.LongTensor, tmp_path: Path
) -> None:
    half = any_order.bfloat16()
    half.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}
    loaded = AOGPTForAnyOrderLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(loaded(ids).logits, half(ids).logits)
    assert AOGPTForAnyOrderLM.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32
    assert not (loaded.generate(num_return_sequences=2) == MASK).any()


def test_models_outputs_and_collators_can_be_pickled_and_copied(
    any_order: AOGPTForAnyOrderLM, encoder: MDMEncoderForMaskedLM, ids: torch.LongTensor
) -> None:
    masked_ids = ids.masked_fill(ids % 3 == 0, MASK)
    for model, inputs in ((any_order, ids), (encoder, masked_ids)):
        expected = model(inputs)
        for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert type(again) is type(model)
            assert again.config.to_dict() == model.config.to_dict()
            assert torch.equal(again(inputs).logits, expected.logits)
            again.lm_head.weight.data.zero_()
        assert torch.equal(model(inputs).logits, expected.logits)
        assert torch.equal(pickle.loads(pickle.dumps(expected)).logits, expected.logits)
    collator = DataCollatorForAnyOrderLM(seed=3)
    rows = [{"input_ids": row, "order_seed": index} for index, row in enumerate(ids.tolist())]
    assert torch.equal(pickle.loads(pickle.dumps(collator))(rows)["orders"], collator(rows)["orders"])
    output = any_order.generate(masked_ids, return_dict_in_generate=True, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pickle.loads(pickle.dumps(output)).sequences, output.sequences)


def test_flex_attention_is_an_error(any_order: AOGPTForAnyOrderLM) -> None:
    """Without a mask, flex attention of Transformers is not causal."""
    with pytest.raises(ValueError, match="flex_attention"):
        any_order.set_attn_implementation("flex_attention")
