# SPDX-License-Identifier: Apache-2.0
"""Operator times from the tables that ship with aiconfigurator 0.8.0 (NVIDIA, Apache-2.0).

Owns: the only import of aiconfigurator, and which of its operators a layer consists of. Does not
own: adding operators to steps (operator_steps), which tables are asked (profile_targets).

Projections, attention, experts and all-reduce are measured; norms, activations and position
encoding are aiconfigurator's bandwidth formula. Times are of one rank, all layers, seconds.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

from controller.errors import UserError
from experiments.profile_targets import MoeTable, Precision, Shape, Source, Target

VERSION = "0.8.0"
_16_BIT = 2  # bytes of an activation
_NARROWEST = 32  # outputs of the narrowest projection in the tables


class TablesError(UserError):
    """Operator tables that cannot be read."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What aiconfigurator's description of a system says. Bytes and bytes/s."""

    memory_bytes: float
    memory_bandwidth: float
    tensor_flops: float
    network_bandwidth: float
    """Of one GPU to another node, in one direction."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Sizes of a weight matrix; `narrow_input` if the kernel before can write 8 or 4 bits."""

    outputs: int
    inputs: int
    narrow_input: bool = False


def load_tables(source: Source) -> Any:
    """aiconfigurator's database of one folder of tables. Raises TablesError."""
    try:
        from aiconfigurator.sdk.perf_database import get_database
    except ImportError as error:
        raise TablesError(
            f"aiconfigurator cannot be imported ({error}); install {VERSION} with "
            "pip install 'dynamo-equilibrium[costs-data]'"
        ) from None
    logging.getLogger("aiconfigurator").setLevel(logging.ERROR)
    tables = get_database(source.system, source.backend, source.version)
    if tables is None:
        raise TablesError(f"aiconfigurator {VERSION} has no tables for {source}")
    return tables


def hardware(tables: Any) -> Hardware:
    """The system that the tables were measured on."""
    gpu, node = tables.system_spec["gpu"], tables.system_spec["node"]
    return Hardware(
        memory_bytes=gpu["mem_capacity"],
        memory_bandwidth=gpu["mem_bw"],
        tensor_flops=gpu["float16_tc_flops"],
        network_bandwidth=node["inter_node_bw"],
    )


class AiconfiguratorOperators:
    """`operator_steps.Operators` of one target."""

    def __init__(self, target: Target, tables: Any) -> None:
        from aiconfigurator.sdk import common

        self._target, self._shape, self._tables, self._modes = target, target.shape, tables, common
        wide = target.precision is Precision.BF16
        gemm = {Precision.BF16: "float16", Precision.FP4: "nvfp4"}
        self._gemm_mode = common.GEMMQuantMode[gemm.get(target.precision, target.precision.value)]
        self._kv_mode = common.KVCacheQuantMode["float16" if wide else "fp8"]
        # TensorRT-LLM computes attention in 8 bits where the cache has 8; vLLM and SGLang do not.
        narrow = not wide and target.source.backend == "trtllm"
        self._attention_mode = common.FMHAQuantMode["fp8" if narrow else "float16"]

    def dense_s(self, tokens: int) -> float:
        """Projections, MLP or experts, norms and all-reduces of `tokens` tokens."""
        shape, tp = self._shape, self._target.tp
        layer = sum(self._gemm_ms(tokens, each) for each in self._projections())
        layer += 2 * self._memory_ms(tokens * 4 * shape.hidden)  # two norms with their additions
        layer += 2 * self._all_reduce_ms(tokens)
        if shape.experts:
            layer += self._experts_ms(tokens)
        else:
            width = shape.intermediate // tp
            layer += self._memory_ms(tokens * width * (3 if shape.gated else 2))
        once = self._memory_ms(tokens * shape.hidden) + self._all_reduce_ms(tokens)
        return (shape.layers * layer + once) / 1e3

    def head_s(self, sequences: int) -> float:
        """The output head, which keeps 16 bits."""
        mode = self._modes.GEMMQuantMode.float16
        width = self._shape.vocab // self._target.tp
        return float(self._tables.query_gemm(sequences, width, self._shape.hidden, mode)) / 1e3

    @functools.cache  # noqa: B019 - as many entries as the grid has points
    def decode_attention_s(self, batch: int, context: int) -> float:
        """Attention of `batch` decodes with `context` tokens each."""
        if self._shape.kv_latent:
            one = self._tables.query_generation_mla(batch, context, self._heads, self._kv_mode)
        else:
            one = self._tables.query_generation_attention(
                batch, context, self._heads, self._kv_heads, self._kv_mode, head_size=self._head_dim
            )
        return self._shape.layers * float(one) * self._head_scale / 1e3

    @functools.cache  # noqa: B019
    def prefill_attention_s(self, tokens: int) -> float:
        """Attention, position encoding and cache write of one prompt without prior context."""
        if self._shape.kv_latent:
            one = self._tables.query_context_mla(
                1, tokens, 0, self._heads, self._kv_mode, self._attention_mode
            )
        else:
            one = self._tables.query_context_attention(
                1,
                tokens,
                0,
                self._heads,
                self._kv_heads,
                self._kv_mode,
                self._attention_mode,
                head_size=self._head_dim,
            )
        layer = float(one) * self._head_scale + self._around_attention_ms(tokens)
        return self._shape.layers * layer / 1e3

    def _around_attention_ms(self, tokens: int) -> float:
        """Rotating queries and keys, normalising them where the model does, writing the cache."""
        elements = tokens * self._head_dim * (self._heads + self._kv_heads)
        passes = 2 if self._shape.query_key_norm else 1
        written = tokens * 2 * self._head_dim * self._kv_heads
        return passes * self._memory_ms(2 * elements) + self._memory_ms(written)

    @property
    def _heads(self) -> int:
        return self._shape.heads // self._target.tp

    @property
    def _kv_heads(self) -> int:
        return max(1, self._shape.kv_heads // self._target.tp)

    @property
    def _head_dim(self) -> int:
        """Measured head size: 128 stands for any other."""
        return 128

    @property
    def _head_scale(self) -> float:
        return 1.0 if self._shape.kv_latent else self._shape.head_dim / self._head_dim

    def _projections(self) -> list[Projection]:
        """The projections of one layer on one rank, routed experts left out."""
        shape, tp = self._shape, self._target.tp
        if shape.kv_latent:
            found = _latent_projections(shape, tp)
        else:
            queries = self._heads * shape.head_dim
            keys = self._kv_heads * shape.head_dim
            found = [
                Projection(queries + 2 * keys, shape.hidden),
                Projection(shape.hidden, queries, narrow_input=True),
            ]
        if shape.experts:
            found.append(Projection(max(shape.experts, _NARROWEST), shape.hidden))
        width = (shape.shared if shape.experts else shape.intermediate) // tp
        if width:
            found.append(Projection(2 * width if shape.gated else width, shape.hidden))
            found.append(Projection(shape.hidden, width, narrow_input=True))
        return found

    def _gemm_ms(self, tokens: int, projection: Projection) -> float:
        outputs, inputs = projection.outputs, projection.inputs
        ms = float(self._tables.query_gemm(tokens, outputs, inputs, self._gemm_mode))
        if self._target.fused:
            ms -= self._quantisation_ms(tokens, projection)
        return max(ms, 0.0)

    def _quantisation_ms(self, tokens: int, projection: Projection) -> float:
        """The separate quantisation of the activations that the tables time with a projection.

        TensorRT-LLM's tables hold its kernels: finding a scale, which static scales need not,
        and scaling, which falls away where the kernel before writes narrow numbers.
        """
        if self._target.source.backend != "trtllm":
            return self._narrow_excess_ms(tokens, projection.inputs)
        at = (tokens, projection.inputs, self._modes.GEMMQuantMode.fp8_static)
        scaling_ms = float(self._tables.query_scale_matrix(*at))
        if self._target.precision is Precision.FP4:
            return scaling_ms
        finding_ms = float(self._tables.query_compute_scale(*at))
        return finding_ms + (scaling_ms if projection.narrow_input else 0.0)

    @functools.cache  # noqa: B019
    def _narrow_excess_ms(self, tokens: int, inputs: int) -> float:
        """What a narrow projection takes longer than one in 16 bits where outputs are fewest.

        There the multiplication itself takes next to nothing.
        """
        rows = self._tables._gemm_data[self._gemm_mode]  # no public way to ask for the grid
        near = min(rows[1], key=lambda n: (min(abs(k - inputs) for k in rows[1][n]), n))
        at = min(rows[1][near], key=lambda k: abs(k - inputs))
        wide = self._modes.GEMMQuantMode.float16
        narrow_ms = float(self._tables.query_gemm(tokens, near, at, self._gemm_mode))
        return max(0.0, narrow_ms - float(self._tables.query_gemm(tokens, near, at, wide)))

    def _memory_ms(self, elements: int) -> float:
        return float(self._tables.query_mem_op(elements * _16_BIT))

    def _all_reduce_ms(self, tokens: int) -> float:
        if self._target.tp == 1:
            return 0.0
        half, size = self._modes.CommQuantMode.half, tokens * self._shape.hidden
        return float(self._tables.query_custom_allreduce(half, self._target.tp, size))

    def _experts_ms(self, tokens: int) -> float:
        """Routed experts of one layer, spread by tensor parallelism."""
        shape = self._shape
        own = MoeTable(shape.hidden, shape.intermediate, shape.per_token, shape.experts)
        table = shape.measured_experts or own
        one = self._tables.query_moe(
            num_tokens=tokens,
            hidden_size=table.hidden,
            inter_size=table.intermediate,
            topk=table.per_token,
            num_experts=table.experts,
            moe_tp_size=self._target.tp,
            moe_ep_size=1,
            quant_mode=self._modes.MoEQuantMode.float16,
            workload_distribution="power_law_1.2",
        )
        system = hardware(self._tables)
        return float(one) * roofline_s(own, tokens, system) / roofline_s(table, tokens, system)


def _latent_projections(shape: Shape, tp: int) -> list[Projection]:
    """Latent attention without query compression: 128 elements of a head and 64 rotated ones."""
    heads = shape.heads // tp
    return [
        Projection(heads * shape.head_dim, shape.hidden),
        Projection(shape.kv_latent, shape.hidden),
        Projection(heads * 256, 512),
        Projection(shape.hidden, heads * 128),
    ]


def roofline_s(table: MoeTable, tokens: int, system: Hardware) -> float:
    """Reading the experts that any token uses plus computing, at the hardware's peaks.

    With uniform routing a token misses an expert with probability 1 - k/E.
    """
    used = table.experts * (1 - (1 - table.per_token / table.experts) ** tokens)
    parameters = 3 * table.hidden * table.intermediate
    read_s = used * parameters * _16_BIT / system.memory_bandwidth
    return read_s + 2 * tokens * table.per_token * parameters / system.tensor_flops
