# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Measurements of the code of this project: speed, memory, estimators, and resumed runs."""
