# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training with rewards by exact and approximate likelihoods."""
