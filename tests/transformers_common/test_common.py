# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Common model tests of Transformers for the classes of this package. Tests that do not apply are skipped by name."""

import unittest
from collections.abc import Callable

import torch
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor

from modeling_aogpt import (
    AOGPTConfig,
    AOGPTForAnyOrderLM,
    AOGPTForCausalLM,
    AOGPTForMaskedLM,
    MDMEncoderConfig,
    MDMEncoderForMaskedLM,
)

SKIPPED = {
    "test_generation_tester_mixin_inheritance": "the source distribution does not have the tests of generation",
    "test_resize_tokens_embeddings": "new ids must be below the mask",
    "test_resize_embeddings_untied": "new ids must be below the mask",
    "test_resize_embeddings_untied_no_reinit_on_post_init": "new ids must be below the mask",
}
SKIPPED_FOR_CAUSAL_LM = {
    "test_causal_lm_loss_honors_shift_labels": "the argument is for parts of a sequence, and raises an error",
    "test_attention_outputs": "attentions have an additional row and column for the start row",
    "test_retain_grad_hidden_states_attentions": "hidden states are views without the start row, which get no gradient",
}


def skip_by_name(reasons: dict[str, str]) -> Callable[[type], type]:
    def skip(test_case: type) -> type:
        for name, reason in reasons.items():
            assert hasattr(test_case, name), f"There is no test {name}. Remove it from the list."
            setattr(test_case, name, unittest.skip(reason)(getattr(test_case, name)))
        return test_case

    return skip


class Tester:
    """Sizes, configuration and inputs for the common tests."""

    __test__ = False

    batch_size, seq_length, is_training = 3, 7, True
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 99, 32, 2, 4

    def __init__(self, parent: unittest.TestCase) -> None:
        self.parent = parent
        self.key_length = self.query_length = self.encoder_seq_length = self.seq_length

    def get_config(self) -> AOGPTConfig:
        return self.parent.config_class(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads,
            max_position_embeddings=32,
            target_embedding_size=8,
            gated_mlp=True,  # each entry of the tensor-parallel plan must have a layer
            pad_token_id=0,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[AOGPTConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        inputs = ids_tensor([self.batch_size, self.seq_length], config.num_valid_tokens)
        return config, {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}


class Common(ModelTesterMixin):
    config_class: type[AOGPTConfig]

    def setUp(self) -> None:
        self.model_tester = Tester(self)

    def _prepare_for_class(
        self, inputs_dict: dict[str, torch.Tensor], model_class: type, return_labels: bool = False
    ) -> dict[str, torch.Tensor]:
        """Prepare inputs, with the text as labels, and with masks for masked language models."""
        inputs = super()._prepare_for_class(inputs_dict, model_class)
        if not return_labels:
            return inputs
        ids = inputs["input_ids"]
        if model_class in (AOGPTForMaskedLM, MDMEncoderForMaskedLM):
            is_masked = torch.arange(ids.shape[1]) % 2 == 1
            inputs["input_ids"] = ids.masked_fill(is_masked, self.model_tester.get_config().mask_token_id)
        return inputs | {"labels": ids}


@skip_by_name(SKIPPED)
class DecoderTest(Common, unittest.TestCase):
    config_class = AOGPTConfig
    all_model_classes = (AOGPTForAnyOrderLM, AOGPTForMaskedLM)


@skip_by_name(SKIPPED | SKIPPED_FOR_CAUSAL_LM)
class CausalTest(Common, unittest.TestCase):
    config_class = AOGPTConfig
    all_model_classes = (AOGPTForCausalLM,)


@skip_by_name(SKIPPED)
class EncoderTest(Common, unittest.TestCase):
    config_class = MDMEncoderConfig
    all_model_classes = (MDMEncoderForMaskedLM,)
