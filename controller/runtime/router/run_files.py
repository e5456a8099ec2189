# SPDX-License-Identifier: Apache-2.0
"""What the routers of a deployment leave in its run folder, by name.

Owns: the names. Does not own: what is in the files (decision_log.py, attachment.py).
"""

from __future__ import annotations

from pathlib import Path


def log_name(replica: int = 0) -> str:
    """A replica's decision log, the current file of it."""
    return "decisions.jsonl" if replica == 0 else f"decisions-{replica}.jsonl"


def replica_logs(run_dir: Path) -> list[Path]:
    """The logs of all replicas that have run there."""
    return sorted(run_dir.glob("decisions*.jsonl"))


def facts_name(replica: int = 0) -> str:
    """Where a replica says its instance id and its metrics port."""
    return "router.json" if replica == 0 else f"router-{replica}.json"
