# SPDX-License-Identifier: Apache-2.0
"""Stock parity: three deployments, every probe against each, and the page that says how it went.

`docs/parity.md` is written by this module (`make parity`) and compared with every run.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import probes_answers
import probes_life
import probes_lora
import probes_models
import pytest
from parity_rows import STOCK, Row, Seen, complaints, page
from parity_site import Site, running_site

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

Seens = dict[str, dict[str, Seen]]
PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
ATTACHMENTS = {STOCK: "none", "broker": "broker", "relay": "relay"}
PROBES: tuple[tuple[Row, Callable[[Site], Awaitable[Seen]]], ...] = (
    *probes_models.PROBES,
    *probes_answers.PROBES,
    *probes_models.LATER,
    *probes_life.PROBES,
    *probes_lora.PROBES,
    *probes_life.LAST,
)
ROWS = tuple(row for row, _ in PROBES)
HEAD = """
# Parity with stock Dynamo

What a stock deployment does (Dynamo 1.4.2, KV router, migration limit 3, session affinity on), and
what each attachment makes of it. Written by `make parity` from a run of `tests/parity` on emulated
engines, one prefill and two decode workers; `make test-slow` fails when a run gives another table.
"As stock" means the same outcome and the same answers to the byte, ids and times left out.
"""


async def _observe(run_dir: Path) -> Seens:
    seen: Seens = {}
    for name, attachment in ATTACHMENTS.items():
        async with running_site(attachment, run_dir) as site:
            seen[name] = {row.title: await _safely(site, probe) for row, probe in PROBES}
    return seen


async def _safely(site: Site, probe: Callable[[Site], Awaitable[Seen]]) -> Seen:
    """A probe that breaks is an outcome that no row knows."""
    try:
        return await probe(site)
    except Exception as error:
        return Seen(f"probe failed: {type(error).__name__}: {error}")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seens:
    """Everything that was observed, by attachment and row."""
    return asyncio.run(_observe(tmp_path_factory.mktemp("parity")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_no_row_is_worse_than_stock_without_a_reason(seen: Seens, row: Row) -> None:
    of_row = {name: rows[row.title] for name, rows in seen.items()}
    assert complaints(row, of_row) == [], of_row


def test_the_page_says_what_was_observed(seen: Seens) -> None:
    text = page(ROWS, seen, HEAD.strip())
    if os.environ.get("EQUILIBRIUM_WRITE_PARITY") == "1":
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8").splitlines() == text.splitlines()
