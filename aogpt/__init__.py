# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""The command `aogpt` and its HTTP server. Both work with only the installed package, without a checkout."""
