# SPDX-License-Identifier: Apache-2.0
"""The public traces, where they lie at hand, have the statistics that were computed from them."""

from __future__ import annotations

import pytest
from shared_data import shared_path

from controller.simulation.workloads.reading import ReadOptions, parse_workload
from controller.simulation.workloads.statistics import workload_stats
from controller.simulation.workloads.workload import Workload

pytestmark = pytest.mark.unit


# Requests; span, rate, CV, fullest second; prompt and output mean, p50, p95, longest.
EXPECTED = {
    "azure_code_2023.csv": (
        8_819,
        3435.9,
        2.567,
        13.15,
        67,
        (2048, 1469, 7303, 7437),
        (28, 13, 90, 1899),
    ),
    "azure_conv_2023.csv": (
        19_366,
        3501.7,
        5.530,
        1.09,
        16,
        (1155, 1020, 4083, 14050),
        (211, 129, 451, 1000),
    ),
    "mooncake_conversation.jsonl": (
        12_031,
        3537.0,
        3.401,
        3.03,
        28,
        (12035, 6909, 39550, 126195),
        (343, 350, 698, 2000),
    ),
    "mooncake_synthetic.jsonl": (
        3_993,
        1022.0,
        3.907,
        1.01,
        13,
        (15325, 11587, 48905, 191378),
        (149, 69, 519, 893),
    ),
}
REUSE = {"mooncake_conversation.jsonl": 0.366, "mooncake_synthetic.jsonl": 0.640}


def read(name: str, **options: bool) -> Workload:
    path = shared_path(f"traces/{name}")
    return parse_workload(path.read_text(), str(path), None, ReadOptions(**options))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_public_trace_has_its_known_statistics(name: str) -> None:
    requests, span_s, rate, cv, fullest, prompt, output = EXPECTED[name]
    stats = workload_stats(read(name, spread_bins=False))
    assert stats.requests == requests
    assert stats.span_s == pytest.approx(span_s, abs=0.06)
    assert stats.rate == pytest.approx(rate, abs=0.001)
    assert stats.gap_cv == pytest.approx(cv, abs=0.006)
    assert stats.most_in_1_s == fullest
    for found, known in ((stats.prompt, prompt), (stats.output, output)):
        assert (found.mean, found.p50, found.p95, found.longest) == pytest.approx(known, abs=0.6)
    if name in REUSE:
        assert stats.block_reuse == pytest.approx(REUSE[name], abs=0.0005)
    else:
        assert stats.block_reuse is None


def test_the_three_second_clock_is_an_artefact_that_spreading_removes() -> None:
    stats = workload_stats(read("mooncake_conversation.jsonl"))
    assert stats.gap_cv == pytest.approx(1.0, abs=0.03)
    assert stats.most_in_1_s < 28
