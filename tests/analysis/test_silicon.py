# SPDX-License-Identifier: Apache-2.0
"""Rows of measured servers: what is read, what is compared, why the rest is not."""

from __future__ import annotations

import pytest

from analysis.silicon import Key, SiliconError, Uncovered, match, model_name, parse_points

pytestmark = pytest.mark.unit

HEADER = (
    "id,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,"
    "batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size,"
    "silicon_ttft_ms,silicon_tpot_ms"
)
FP8 = "a,vllm,0.12.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,1024,256,fp8,16,4,1,1,4,1,90.5,12.5"


def points(*rows: str):
    return parse_points("\n".join([HEADER, *rows]) + "\n", "table.csv")


def test_a_row_becomes_a_point() -> None:
    (point,) = points(FP8)
    assert point.uncovered is None
    assert point.key == Key("llama-3.1-70b", "h100", "vllm", "fp8", 4)
    assert (point.isl, point.osl, point.concurrency) == (1024, 256, 16)
    assert (point.ttft_ms, point.tpot_ms) == (90.5, 12.5)


@pytest.mark.parametrize(
    ("precision", "quantised", "read"),
    [
        ("", "", "bf16"),
        ("fp4", "nvfp4", "fp4"),
        ("fp8", "fp8_block", "fp8_block"),
        ("fp8", "", "fp8"),
        ("int4", "", "int4"),
    ],
)
def test_the_projections_precision_is_read(precision: str, quantised: str, read: str) -> None:
    row = FP8.replace("fp8,agg", f"{precision},agg").replace("256,fp8", f"256,{quantised}")
    assert points(row)[0].precision == read


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (",agg,", ",disagg,", Uncovered.DISAGGREGATED),
        (",16,4,1,1,4,1,", ",16,4,2,1,4,1,", Uncovered.PARALLELISM),
        (",16,4,1,1,4,1,", ",16,4,1,8,4,1,", Uncovered.PARALLELISM),
        (",16,4,1,1,4,1,", ",16,4,1,1,1,4,", Uncovered.PARALLELISM),
        (",16,4,1,1,4,1,", ",,4,1,1,4,1,", Uncovered.UNREADABLE),
        ("12.5", "nan", Uncovered.UNREADABLE),
        ("12.5", "n/a", Uncovered.UNREADABLE),
    ],
)
def test_rows_that_cannot_be_compared_say_why(old: str, new: str, why: Uncovered) -> None:
    assert points(FP8.replace(old, new))[0].uncovered is why


def test_blank_and_zero_degrees_are_none() -> None:
    assert points(FP8.replace(",16,4,1,1,4,1,", ",16,4,1,,0,,"))[0].uncovered is None


def test_rows_without_a_profile_are_marked_and_kept() -> None:
    known, unknown = points(FP8, FP8.replace("h100_sxm", "mi300x"))
    found = match([known, unknown], {known.key: "some_profile"})
    assert [point.uncovered for point in found] == [None, Uncovered.NO_PROFILE]
    assert found[1].system == "mi300x"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen3-32B", "qwen3-32b"),
    ],
)
def test_model_names_lose_organisation_and_checkpoint_words(path: str, name: str) -> None:
    assert model_name(path) == name


def test_a_missing_column_is_named() -> None:
    with pytest.raises(SiliconError, match=r"table\.csv: missing column system"):
        parse_points("id,backend,model_path,mode,isl,osl\n", "table.csv")


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(SiliconError, match="no rows"):
        points()
