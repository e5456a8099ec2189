# SPDX-License-Identifier: Apache-2.0
"""Fitting a folder of operator measurements, and judging that fit on rows it has not seen.

Owns: the fit of the four tables and its hold-out errors. Does not own: reading (op_tables),
attention (attention_fit), putting operators together to a model (compose).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controller.costs.attention_fit import AttentionTables, fit_attention
from controller.costs.curves import Curve, fit_curve
from controller.costs.errors_report import Ape, StepKind, ape, kinds
from controller.costs.grid_fit import bilinear, fit_grid
from controller.costs.model import TableCost
from controller.costs.op_tables import MoeSamples, OpTables, Samples
from controller.costs.tables import Floats, linear_tables


@dataclass(frozen=True, slots=True)
class MoeTable:
    """Seconds of one layer's experts, (tokens an activated expert, activated); grids ascend."""

    load: Floats
    activated: Floats
    seconds: Floats

    def __call__(self, tokens: Floats, activated: Floats) -> Floats:
        """Seconds at points (n,), linear between nodes and beyond the last."""
        weights = bilinear(tokens / activated, activated, self.load, self.activated)
        values: Floats = weights @ self.seconds.ravel()
        return values


@dataclass(frozen=True, slots=True)
class OpFit:
    """The fitted operators of one folder, seconds a layer and rank."""

    attention: AttentionTables
    dense: Mapping[str, Curve]
    per_sequence: Mapping[str, Curve]
    moe: MoeTable | None


@dataclass(frozen=True, slots=True)
class HoldoutErrors:
    """Errors on the random half of every table that the fit has not seen."""

    tables: Mapping[str, Ape]
    attention: Mapping[StepKind, Ape]
    overall: Ape


def fit_ops(tables: OpTables) -> OpFit:
    """Fit every table of a folder."""
    return OpFit(
        attention=fit_attention(tables.attention),
        dense={name: fit_curve(*samples) for name, samples in tables.dense.items()},
        per_sequence={name: fit_curve(*samples) for name, samples in tables.per_sequence.items()},
        moe=fit_moe(tables.moe) if tables.moe else None,
    )


def fit_moe(samples: MoeSamples) -> MoeTable:
    """A table that does not fall with activated experts or with tokens for each of them.

    Experts are a batch of small matrix products, so the time is close to activated experts times
    a function of the tokens that each of them gets.
    """
    load = samples.tokens / samples.activated
    loads, activated = np.unique(load), np.unique(samples.activated)
    seconds = fit_grid(load, samples.activated, samples.seconds, loads, activated)
    return MoeTable(loads, activated, seconds)


def attention_cost(attention: AttentionTables) -> TableCost:
    """A cost model of attention alone: a step without dense or per-sequence work."""
    nothing = linear_tables(0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0, 1.0, 1.0)
    return TableCost(nothing._replace(**attention._asdict()))


def holdout_errors(tables: OpTables, seed: int) -> HoldoutErrors:
    """Fit a random half of every table's rows and predict the other half."""
    rng = np.random.default_rng(seed)
    measured: dict[str, list[Floats]] = {}
    predicted: dict[str, list[Floats]] = {}

    def judge(table: str, of: Floats, against: Floats) -> None:
        predicted.setdefault(table, []).append(of)
        measured.setdefault(table, []).append(against)

    train = _half(len(tables.attention), rng)
    cost = attention_cost(fit_attention(tables.attention.take(train)))
    test = tables.attention.take(~train)
    attention_s = cost.steps_s(test.batch, test.context, test.chunk, test.pairs)
    judge("attention", attention_s, test.step_s)
    for name, layers in (("dense", tables.dense), ("per_sequence", tables.per_sequence)):
        for samples in layers.values():
            judge(name, *_curve_half(samples, rng))
    if tables.moe is not None:
        judge("moe", *_moe_half(tables.moe, rng))
    joined = {
        name: (np.concatenate(predicted[name]), np.concatenate(measured[name])) for name in measured
    }
    everything = [np.concatenate(side) for side in zip(*joined.values(), strict=True)]
    return HoldoutErrors(
        tables={name: ape(*both) for name, both in joined.items()},
        attention={
            kind: ape(attention_s[mask], test.step_s[mask])
            for kind, mask in kinds(test).items()
            if mask.any()
        },
        overall=ape(*everything),
    )


def _half(count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of shape (count,) that selects half of the rows."""
    chosen = np.zeros(count, bool)
    chosen[rng.permutation(count)[: (count + 1) // 2]] = True
    return chosen


def _curve_half(samples: Samples, rng: np.random.Generator) -> tuple[Floats, Floats]:
    at, seconds = samples
    train = _half(len(at), rng)
    return fit_curve(at[train], seconds[train])(at[~train]), seconds[~train]


def _moe_half(samples: MoeSamples, rng: np.random.Generator) -> tuple[Floats, Floats]:
    train = _half(len(samples.tokens), rng)
    table = fit_moe(
        MoeSamples(samples.tokens[train], samples.activated[train], samples.seconds[train])
    )
    return table(samples.tokens[~train], samples.activated[~train]), samples.seconds[~train]
