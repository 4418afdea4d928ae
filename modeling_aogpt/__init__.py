# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""AO-GPT: any-order language models for transformers (arXiv 2506.19935)."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from .configuration_aogpt import AOGPTConfig
from .data_collator import DataCollatorForAnyOrderLM
from .generation_aogpt import AnyOrderGenerationOutput
from .likelihood import LogLikelihoodOutput
from .modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, AOGPTModel

# With the package imported, the Auto classes know the model without trust_remote_code.
AutoConfig.register(AOGPTConfig.model_type, AOGPTConfig)
AutoModel.register(AOGPTConfig, AOGPTForAnyOrderLM)
AutoModelForMaskedLM.register(AOGPTConfig, AOGPTForMaskedLM)
AutoModelForCausalLM.register(AOGPTConfig, AOGPTForCausalLM)

__all__ = [
    "AOGPTConfig",
    "AOGPTForAnyOrderLM",
    "AOGPTForCausalLM",
    "AOGPTForMaskedLM",
    "AOGPTModel",
    "AnyOrderGenerationOutput",
    "DataCollatorForAnyOrderLM",
    "LogLikelihoodOutput",
]
