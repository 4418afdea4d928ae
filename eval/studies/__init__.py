# Copyright 2026 The AO-GPT package authors. SPDX-License-Identifier: Apache-2.0
"""Research studies. See README.md."""
