# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""Command line and server for users of a model. They need only the installed package, not a checkout."""
