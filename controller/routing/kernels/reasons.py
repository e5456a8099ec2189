# SPDX-License-Identifier: Apache-2.0
"""Choices and reasons as compiled rules return them, and their names for the live router."""

from __future__ import annotations

from controller.types import DecisionReason

LOCAL = -1
"""The choice that names no prefill worker."""

REASONS = tuple(DecisionReason)
"""A compiled rule's reason is an index into this: the enum is closed and never reordered."""

PREFILL_SLACK = REASONS.index(DecisionReason.PREFILL_SLACK)
DECODE_SLACK = REASONS.index(DecisionReason.DECODE_SLACK)
ARGMIN_LOCAL = REASONS.index(DecisionReason.ARGMIN_LOCAL)
ARGMIN_REMOTE = REASONS.index(DecisionReason.ARGMIN_REMOTE)
LEAST_LOADED = REASONS.index(DecisionReason.LEAST_LOADED)
ALWAYS_LOCAL = REASONS.index(DecisionReason.ALWAYS_LOCAL)
PREFILL_POOL_EMPTY = REASONS.index(DecisionReason.PREFILL_POOL_EMPTY)
NO_DECODE_WORKER = REASONS.index(DecisionReason.NO_DECODE_WORKER)
ROUND_ROBIN = REASONS.index(DecisionReason.ROUND_ROBIN)
LEAST_TTFT_LOCAL = REASONS.index(DecisionReason.LEAST_TTFT_LOCAL)
LEAST_TTFT_REMOTE = REASONS.index(DecisionReason.LEAST_TTFT_REMOTE)
PREFILL_FAILED = REASONS.index(DecisionReason.PREFILL_FAILED)
TOLL_LOCAL = REASONS.index(DecisionReason.TOLL_LOCAL)
TOLL_REMOTE = REASONS.index(DecisionReason.TOLL_REMOTE)
DEFLECTED = REASONS.index(DecisionReason.DEFLECTED)
NOT_DEFLECTED = REASONS.index(DecisionReason.NOT_DEFLECTED)
KV_COST = REASONS.index(DecisionReason.KV_COST)
BELOW_THRESHOLD = REASONS.index(DecisionReason.BELOW_THRESHOLD)
ABOVE_THRESHOLD = REASONS.index(DecisionReason.ABOVE_THRESHOLD)
