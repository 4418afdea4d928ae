# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Model cards, and publishing of models on the Hugging Face Hub."""
