# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Commands that convert models of other projects to this package, and models of this package to causal LMs."""
