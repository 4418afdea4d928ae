# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""AO-GPT: any-order language models for Transformers (arXiv 2506.19935)."""

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from .configuration_aogpt import AOGPTConfig, MDMEncoderConfig
from .data_collator import DataCollatorForAnyOrderLM
from .generation import AnyOrderGenerationOutput
from .generation_config import AnyOrderGenerationConfig
from .infill import InfillingOutput
from .likelihood import LogLikelihoodOutput
from .modeling_aogpt import AOGPTForAnyOrderLM, AOGPTForCausalLM, AOGPTForMaskedLM, AOGPTModel
from .modeling_mdm_encoder import MDMEncoderForMaskedLM, MDMEncoderModel

# Importing the package registers its models with the Auto classes. They then load without trust_remote_code.
AutoConfig.register(AOGPTConfig.model_type, AOGPTConfig)
AutoModel.register(AOGPTConfig, AOGPTForAnyOrderLM)
AutoModelForMaskedLM.register(AOGPTConfig, AOGPTForMaskedLM)
AutoModelForCausalLM.register(AOGPTConfig, AOGPTForCausalLM)
AutoConfig.register(MDMEncoderConfig.model_type, MDMEncoderConfig)
AutoModel.register(MDMEncoderConfig, MDMEncoderForMaskedLM)
AutoModelForMaskedLM.register(MDMEncoderConfig, MDMEncoderForMaskedLM)

__all__ = [
    "AOGPTConfig",
    "AOGPTForAnyOrderLM",
    "AOGPTForCausalLM",
    "AOGPTForMaskedLM",
    "AOGPTModel",
    "AnyOrderGenerationConfig",
    "AnyOrderGenerationOutput",
    "DataCollatorForAnyOrderLM",
    "InfillingOutput",
    "LogLikelihoodOutput",
    "MDMEncoderConfig",
    "MDMEncoderForMaskedLM",
    "MDMEncoderModel",
]
