# SPDX-License-Identifier: Apache-2.0
"""Step tables of a whole model from the operators of one layer.

Owns: how often each operator runs, the collectives of a layout, experts under expert parallelism,
pipeline stages, and the host's share. Does not own: operator times (op_profiles), formulae of
collectives (collectives), shapes (architecture).

    dense(n) = once-a-step operators(n) + layers * (layer operators(n) + experts(n)
               + collectives(n)) + host
    per_sequence(s) = head(s) + sampler(s) + host a sequence * s
    attention = layers * attention of one layer

Tensor parallel ranks compute alike; a layer ends attention and MLP with an all-reduce each.
Data-parallel replicas are workers of their own; with expert parallelism they meet in every expert
layer: an all-gather of the group's tokens, the local experts, a reduce-scatter (vLLM's default),
with the group's other replicas taken to hold as many tokens as this one.
A pipeline of pp stages is taken in its steady state: a step's work is pp micro-batches, one on
each stage, so n tokens take as long as n/pp tokens through all layers, plus pp messages between
stages. Filling the pipeline is not charged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controller.costs.architecture import Architecture
from controller.costs.attention_fit import AttentionTables
from controller.costs.collectives import Link, all_gather_s, all_reduce_s
from controller.costs.curves import Curve, rising, weighted_sum
from controller.costs.op_profiles import MoeTable, OpFit
from controller.costs.profile_fields import Parallelism
from controller.costs.tables import (
    EMITTED,
    LIMITS,
    MAX_ATTENDED,
    MAX_BATCH,
    MAX_CONTEXT,
    MAX_STEP_CHUNK,
    PAD_MIXED,
    VERIFIED,
    Floats,
    StepTables,
    default_options,
    transfer_vector,
    vector,
)
from controller.errors import UserError

# Calls a layer where it is not one; times in the tables are those of one call.
CALLS = {"layernorm": 2, "qk_norm": 2}
ONCE_A_STEP = ("embedding", "final_layernorm")
# The tables of higher degrees repeat the rows of one rank with all heads; a rank has its share.
OF_ALL_HEADS = ("qk_norm",)
_ACTIVATION_BYTES = 2.0
_TOLERANCE = 0.01  # of breakpoints dropped from the summed dense curve


@dataclass(frozen=True, slots=True)
class ComposeOptions:
    """What operator measurements do not hold. Seconds, bytes, tokens.

    `link` joins the ranks of a tensor, expert or pipeline group. `host_step_s` is host time a step
    that no GPU work hides; `launch_s` is taken off every kernel of a step inside a CUDA graph, for
    operator times that were taken with their launches (kernel times hold none: leave 0).
    `capture_sizes` pads steps to graphs. KV moves over a link of its own.
    """

    max_num_batched_tokens: int = 2048
    link: Link | None = None
    host_step_s: float = 0.0
    host_per_sequence_s: float = 0.0
    launch_s: float = 0.0
    capture_sizes: tuple[int, ...] = ()
    pad_mixed: bool = True
    verified_tokens: int = 1
    emitted_tokens: float = 1.0
    kv_link: Link = Link(0.0, 25e9)  # noqa: RUF009  (frozen)


def compose(
    model: Architecture, ops: OpFit, layout: Parallelism, options: ComposeOptions
) -> StepTables:
    """The tables of `model` on one worker of `layout`. `ops` were measured at the same tp.

    Raises UserError when the layout needs a link and there is none.
    """
    if options.link is None and max(layout.tp, layout.pp, layout.ep) > 1:
        raise UserError("a layout over several GPUs needs the link between them")
    dense = rising(_dense(model, ops, layout, options))
    sequences = rising(_per_sequence(ops, options))
    attention = ops.attention
    layers = float(model.layers)
    return StepTables(
        dense_tokens=dense.at * layout.pp,
        dense_s=dense.value,
        sequences=sequences.at,
        sequence_s=sequences.value,
        batch=attention.batch * layout.pp,
        context=attention.context,
        decode_s=attention.decode_s * layers,
        chunk=attention.chunk * layout.pp,
        attended=attention.attended,
        prefill_s=attention.prefill_s * layers,
        mixed_batch=attention.mixed_batch * layout.pp,
        mixed_context=attention.mixed_context,
        mixed_decode_s=attention.mixed_decode_s * layers,
        mixed_chunk=attention.mixed_chunk * layout.pp,
        mixed_share=attention.mixed_share,
        overlap=attention.overlap,
        capture_sizes=vector(options.capture_sizes) * layout.pp,
        transfer=transfer_vector(
            options.kv_link.latency_s, model.kv_bytes_per_token, options.kv_link.bandwidth_bytes_s
        ),
        limits=_limits(attention, layout.pp),
        options=_options(options),
    )


def _dense(model: Architecture, ops: OpFit, layout: Parallelism, options: ComposeOptions) -> Curve:
    parts = [(_times(name, model, layout), curve) for name, curve in ops.dense.items()]
    points = np.unique(np.concatenate([curve.at for _, curve in parts]))
    extra = options.host_step_s + _collectives(model, layout, options.link, points)
    if model.experts:
        if ops.moe is None:
            raise UserError(f"{model.name}: the operator tables hold no experts")
        extra = extra + model.moe_layers * expert_s(model, ops.moe, layout, points)
    # A curve of its own, so that the breakpoints of the sum are chosen once, at the end.
    summed = weighted_sum([*parts, (1.0, Curve(points, extra + 0.0 * points))], _TOLERANCE)
    kernels = model.layers * (sum(CALLS.get(name, 1) for name in ops.dense) + 1)
    return _in_graphs(summed, options.launch_s * kernels, options.capture_sizes)


def _times(name: str, model: Architecture, layout: Parallelism) -> float:
    """How often a step takes an operator's time on one rank."""
    if name in ONCE_A_STEP:
        return 1.0
    return model.layers * CALLS.get(name, 1) / (layout.tp if name in OF_ALL_HEADS else 1)


def _in_graphs(curve: Curve, saved_s: float, sizes: tuple[int, ...]) -> Curve:
    """The curve less the launches that graphs save, up to the largest graph."""
    if saved_s <= 0.0 or not sizes:
        return curve
    top = float(max(sizes))
    points = np.unique(np.concatenate([curve.at, [top, top + 1.0]]))
    values = curve(points)
    least = float(values.min()) * 0.1
    return Curve(points, np.maximum(values - np.where(points <= top, saved_s, 0.0), least))


def _per_sequence(ops: OpFit, options: ComposeOptions) -> Curve:
    parts = [(1.0, curve) for curve in ops.per_sequence.values()]
    points = np.unique(np.concatenate([curve.at for _, curve in parts]))
    host = Curve(points, options.host_per_sequence_s * points)
    return weighted_sum([*parts, (1.0, host)], _TOLERANCE)


def _collectives(
    model: Architecture, layout: Parallelism, link: Link | None, tokens: Floats
) -> Floats:
    """All collectives of one step for tokens (n,) in a micro-batch, seconds (n,)."""
    if link is None:
        return np.zeros(len(tokens))
    row = model.hidden * _ACTIVATION_BYTES
    reduced = 2 * model.layers - (model.moe_layers if layout.ep > 1 else 0)
    total = _each(tokens, lambda n: reduced * all_reduce_s(link, layout.tp, n * row))
    if layout.ep > 1 and model.moe_layers:
        group = layout.ep / layout.tp  # replicas whose tokens meet
        meet = _each(tokens, lambda n: 2 * all_gather_s(link, layout.ep, n * group * row))
        total = total + model.moe_layers * meet
    if layout.pp > 1:
        total = total + _each(tokens, lambda n: layout.pp * link.message_s(n * row))
    return total


def _each(tokens: Floats, seconds: Callable[[float], float]) -> Floats:
    return np.array([seconds(float(n)) for n in tokens])


def expert_s(model: Architecture, moe: MoeTable, layout: Parallelism, tokens: Floats) -> Floats:
    """One layer's experts on one rank for tokens (n,) of this worker, seconds (n,).

    Tokens choose experts evenly and independently: of E experts with k a token, N tokens use
    E*(1 - (1 - k/E)**N). A rank holds E/ep of them and computes 1/ep of the group's tokens.
    Without expert parallelism tp ranks split every expert; tables of one rank are divided by tp.
    """
    group = tokens * (layout.ep / layout.tp if layout.ep > 1 else 1.0)
    share = 1.0 - (1.0 - model.experts_per_token / model.experts) ** group
    local = model.experts / layout.ep * share
    seconds = moe(group / layout.ep, np.maximum(local, 1.0))
    split: Floats = seconds / (layout.tp if layout.ep == 1 else 1)
    return split


def _limits(attention: AttentionTables, pp: int) -> Floats:
    limits = np.zeros(LIMITS)
    limits[MAX_BATCH] = attention.batch[-1] * pp
    limits[MAX_CONTEXT] = attention.context[-1]
    limits[MAX_STEP_CHUNK] = attention.chunk[-1] * pp
    limits[MAX_ATTENDED] = attention.attended[-1]
    return limits


def _options(given: ComposeOptions) -> Floats:
    options = default_options(given.max_num_batched_tokens)
    options[PAD_MIXED] = float(given.pad_mixed)
    options[VERIFIED] = given.verified_tokens
    options[EMITTED] = given.emitted_tokens
    return options
