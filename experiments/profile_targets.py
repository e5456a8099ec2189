# SPDX-License-Identifier: Apache-2.0
"""Which profiles are fitted from aiconfigurator's operator tables, and from which of them.

Owns: the list of targets with the choices that a table cannot make itself (version, precision,
stand-ins) and their reasons. Does not own: reading tables (aiconfigurator_tables), the grid of
steps (operator_steps), fitting (fit_profiles).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Precision(str, Enum):
    """Weights of the projections; the KV cache has 16 bits for BF16 and 8 bits otherwise."""

    BF16 = "bf16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    FP4 = "fp4"


@dataclass(frozen=True, slots=True)
class MoeTable:
    """The expert shape of an operator table, which may differ from the model's."""

    hidden: int
    intermediate: int
    per_token: int
    experts: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer; sizes are elements.

    `gated` is False for an MLP of two matrices. `experts` = 0 is dense. `shared` is the
    intermediate size of the experts that see every token. `kv_latent` above 0 is latent attention
    (MLA): the cached elements a token and layer. `measured_experts` is the table used where the
    model's own expert shape was not measured.
    """

    label: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    query_key_norm: bool = False
    experts: int = 0
    per_token: int = 0
    shared: int = 0
    kv_latent: int = 0
    measured_experts: MoeTable | None = None
    note: str = ""

    @property
    def cached_elements(self) -> int:
        """KV elements of one token over all layers and ranks."""
        return self.layers * (self.kv_latent or 2 * self.kv_heads * self.head_dim)


@dataclass(frozen=True, slots=True)
class Source:
    """One folder of operator tables, in aiconfigurator's names."""

    system: str
    backend: str
    version: str


@dataclass(frozen=True, slots=True)
class Target:
    """One profile: a model on `tp` GPUs of a system, as one engine and precision run it.

    `fused` says that activations are quantised inside the kernel before a projection, so that
    the separate quantisation which the tables time with every 8- or 4-bit projection is taken off.
    """

    shape: Shape
    source: Source
    tp: int
    precision: Precision = Precision.BF16
    fused: bool = False
    note: str = ""

    @property
    def gpu(self) -> str:
        """As the profile says it: H100, H200, B200, A100."""
        return self.source.system.removesuffix("_sxm").upper()

    @property
    def name(self) -> str:
        """File name: model, precision unless 16 bits, degree, GPU, engine unless vLLM."""
        slug = self.shape.label.lower().replace(".", "").replace("-", "_")
        parts = [slug.replace("llama_3", "llama3").replace("nemotron_4", "nemotron4")]
        if self.precision is not Precision.BF16:
            parts.append(self.precision.value)
        parts += [f"tp{self.tp}", self.gpu.lower()]
        if self.source.backend != "vllm":
            parts.append(self.source.backend)
        return "_".join(parts)


LLAMA_8B = Shape("Llama-3.1-8B", 32, 4096, 32, 8, 128, 14336, 128256)
LLAMA_70B = Shape("Llama-3.1-70B", 80, 8192, 64, 8, 128, 28672, 128256)
QWEN3_32B = Shape("Qwen3-32B", 64, 5120, 64, 8, 128, 25600, 151936, query_key_norm=True)
MIXTRAL_8X7B = Shape("Mixtral-8x7B", 32, 4096, 32, 8, 128, 14336, 32000, experts=8, per_token=2)
NEMOTRON4_340B = Shape(
    "Nemotron-4-340B",
    layers=96,
    hidden=18432,
    heads=96,
    kv_heads=8,
    head_dim=192,
    intermediate=73728,
    vocab=256000,
    gated=False,
    note=(
        "Dense stand-in: aiconfigurator knows no Nemotron-4-340B and predicts 0 ms by its name. "
        "The step is put together from the model's published shape; its heads of 192 elements were "
        "not measured, so attention is that of 128 elements times 1.5, and the widest projections "
        "are interpolated between measured widths."
    ),
)
DEEPSEEK_V2_LITE = Shape(
    "DeepSeek-V2-Lite",
    layers=27,
    hidden=2048,
    heads=16,
    kv_heads=1,
    head_dim=192,
    intermediate=1408,
    vocab=102400,
    experts=64,
    per_token=6,
    shared=2816,
    kv_latent=576,
    measured_experts=MoeTable(hidden=2048, intermediate=768, per_token=8, experts=128),
    note=(
        "MoE stand-in: the experts' shape (64 of 2048x1408, 6 a token) was not measured on A100. "
        "Their time is that of the nearest measured shape (128 of 2048x768, 8 a token) times the "
        "ratio of the two shapes' roofline times; the first layer's dense MLP counts as a layer of "
        "experts. Latent attention is measured (16 heads), but launched eagerly: 0.3 ms a layer "
        "that CUDA graphs would mostly hide, so short decode steps come out too long."
    ),
)

H20 = "Stand-in for the H20 of the papers, which the tables do not have. "
# Corrupt rows in vLLM 0.14.0 on H100; no all-reduce in vLLM 0.19.0 on B200.
VLLM = {
    system: Source(system, "vllm", version)
    for system, version in (
        ("h100_sxm", "0.12.0"),
        ("h200_sxm", "0.12.0"),
        ("b200_sxm", "0.17.0"),
        ("a100_sxm", "0.14.0"),
    )
}
TRTLLM = {
    system: Source(system, "trtllm", "1.2.0rc5") for system in ("h100_sxm", "h200_sxm", "b200_sxm")
}
SGLANG = {system: Source(system, "sglang", "0.5.9") for system in ("h100_sxm", "h200_sxm")}

ALL_DEGREES = (1, 2, 4, 8)


def _over(
    shape: Shape,
    source: Source,
    degrees: tuple[int, ...] = ALL_DEGREES,
    precision: Precision = Precision.BF16,
    fused: bool = False,
    note: str = "",
) -> list[Target]:
    return [Target(shape, source, tp, precision, fused, note) for tp in degrees]


def _papers() -> list[Target]:
    """What the papers' experiments run, or stand-ins for it."""
    targets = [
        t for s in ("b200_sxm", "h100_sxm", "h200_sxm") for t in _over(LLAMA_70B, VLLM[s], (4, 8))
    ]
    for system in ("h100_sxm", "h200_sxm"):
        targets += _over(QWEN3_32B, VLLM[system], note=H20)
        targets += _over(MIXTRAL_8X7B, VLLM[system], (2, 4, 8), note=H20)
    targets += _over(NEMOTRON4_340B, VLLM["b200_sxm"], (8,))
    return targets + _over(DEEPSEEK_V2_LITE, VLLM["a100_sxm"], (1,))


def _measured_servers() -> list[Target]:
    """Models, engines and precisions of the servers that check_costs.py compares with.

    FP8 checkpoints with static scales quantise inside the norm in all three engines, NVFP4 ones in
    TensorRT-LLM only; block-scaled FP8 quantises on its own.
    """
    targets = []
    for source in (TRTLLM["b200_sxm"], VLLM["b200_sxm"]):
        targets += _over(LLAMA_70B, source, precision=Precision.FP8, fused=True)
        fused = source.backend == "trtllm"
        targets += _over(LLAMA_70B, source, precision=Precision.FP4, fused=fused)
    targets += _over(LLAMA_70B, VLLM["h100_sxm"], (2, 4, 8), Precision.FP8, fused=True)
    for source in (TRTLLM["h200_sxm"], VLLM["h200_sxm"]):
        targets += _over(LLAMA_70B, source, precision=Precision.FP8, fused=True)
    targets += _over(QWEN3_32B, TRTLLM["h100_sxm"], precision=Precision.FP8, fused=True)
    targets += _over(QWEN3_32B, VLLM["h100_sxm"], precision=Precision.FP8, fused=True)
    targets += _over(QWEN3_32B, SGLANG["h100_sxm"])
    targets += _over(LLAMA_8B, TRTLLM["h100_sxm"])
    targets += _over(LLAMA_8B, VLLM["h200_sxm"], precision=Precision.FP8, fused=True)
    targets += _over(LLAMA_8B, SGLANG["h200_sxm"], precision=Precision.FP8_BLOCK)
    return targets


TARGETS = tuple(_papers() + _measured_servers())
