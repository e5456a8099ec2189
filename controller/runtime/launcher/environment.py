# SPDX-License-Identifier: Apache-2.0
"""The environment variables of the launched processes. Pure: mappings in, mappings out.

Precedence, weakest first: our defaults, the operator's own environment, what the configuration
file says in named keys, `dynamo.env` of the configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import controller
from controller.config import DeploymentConfig
from controller.runtime.tiny_model import is_tiny

# Inherited from the operator's shell these would break the plan: the first two change which
# namespace a process sees or registers in, the last would bind one port in every worker.
_NOT_INHERITED = ("DYN_NAMESPACE_PREFIX", "DYN_NAMESPACE_WORKER_SUFFIX", "DYN_SYSTEM_PORT")

_DEFAULTS = {
    "DYN_LOG": "warn",
    # The logs are files: no colours in them.
    "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
    # Stock workers wait 5 s for stragglers before they stop, half of the launcher's bound. Here
    # everything stops together, so there is nobody to wait for.
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1",
}


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """What of the launcher's own environment its children get."""
    return {key: value for key, value in environ.items() if key not in _NOT_INHERITED}


def common(config: DeploymentConfig, run_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What every process of the deployment gets on top of the inherited environment."""
    dynamo = config.dynamo
    env = {
        "DYN_DISCOVERY_BACKEND": dynamo.discovery_backend,
        "DYN_REQUEST_PLANE": dynamo.request_plane,
        "DYN_EVENT_PLANE": dynamo.event_plane,
        "DYN_EQUILIBRIUM_RUN_DIR": str(run_dir),
        "PYTHONUNBUFFERED": "1",
    }
    defaults = dict(_DEFAULTS)
    if dynamo.discovery_backend == "file":
        env["DYN_FILE_KV"] = str(discovery_folder(config, run_dir))
        # One machine: workers take requests on loopback only, whatever its addresses are.
        defaults["DYN_TCP_RPC_HOST"] = "127.0.0.1"
        # Model cards travel through the folder too; unset, every worker warns about it.
        defaults["DYN_SELF_HOST_METADATA"] = "0"
    env |= {key: value for key, value in defaults.items() if key not in environ}
    # model_access last: it has looked at dynamo.env and made HF_HOME absolute.
    return {**env, **dynamo.env, **model_access(config, run_dir)}


def frontend_only(config: DeploymentConfig) -> dict[str, str]:
    """What the frontend gets besides `common`."""
    timeout_s = config.frontend.stream_timeout_s
    return {} if timeout_s is None else {"DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS": str(timeout_s)}


def own_package(environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH that lets `python -m controller` find this very package from a checkout."""
    root = Path(controller.__file__).resolve().parent.parent
    if root.name in {"site-packages", "dist-packages"}:
        return {}
    rest = environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(root), *([rest] if rest else [])])}


def model_access(config: DeploymentConfig, run_dir: Path) -> dict[str, str]:
    """Lets the generated model's name resolve; other models keep the operator's own cache.

    Also what a client's tokenizer needs (aiperf, transformers).
    """
    home = tiny_model_home(config, run_dir)
    if home is None:
        return {}
    # HF_HUB_CACHE would win over HF_HOME if the operator's environment had it.
    return {"HF_HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), "HF_HUB_OFFLINE": "1"}


def tiny_model_home(config: DeploymentConfig, run_dir: Path) -> Path | None:
    """The HF_HOME into which the tiny model is generated; None for every other model."""
    if not is_tiny(config.model):
        return None
    return Path(config.dynamo.env.get("HF_HOME") or run_dir / "hf").expanduser().absolute()


def discovery_folder(config: DeploymentConfig, run_dir: Path) -> Path:
    """Where file discovery keeps its entries."""
    return Path(config.dynamo.file_kv or run_dir / "discovery").expanduser().absolute()
