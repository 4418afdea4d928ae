# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Training on solutions in the order in which the model itself fills in the cells."""
