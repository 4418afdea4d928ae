# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Pretraining, fine-tuning, and conversion from and to causal language models."""
