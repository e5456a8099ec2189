# SPDX-License-Identifier: Apache-2.0
"""Which processes a configuration becomes, and in which environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import controller
from controller.config import DeploymentConfig
from controller.runtime.launcher import ProcessSpec, Role, plan_processes
from controller.runtime.launcher.environment import inherited

pytestmark = pytest.mark.unit
RUN = Path("/runs/r1")


def plan(environ: dict[str, str] | None = None, **fields: Any) -> dict[str, ProcessSpec]:
    config = DeploymentConfig.model_validate({"schema": "equilibrium.deployment/1"} | fields)
    specs = plan_processes(config, RUN, python="PY", environ=environ or {})
    return {spec.name: spec for spec in specs}


def test_default_deployment_is_frontend_router_and_workers_started_together() -> None:
    specs = plan(decode={"workers": 2})
    assert list(specs) == ["frontend", "router", "prefill-0", "decode-0", "decode-1"]
    assert {spec.stage for spec in specs.values()} == {0}


def test_frontend_command_line_names_every_setting() -> None:
    spec = plan(
        dynamo={"namespace": "ns"},
        frontend={
            "http_host": "0.0.0.0",
            "http_port": 9001,
            "router_mode": "round-robin",
            "migration_limit": 2,
            "session_affinity_ttl_s": 60,
            "stream_timeout_s": 120,
            "extra_args": ["--router-temperature", "0.5"],
        },
    )["frontend"]
    assert " ".join(spec.argv) == (
        "PY -m dynamo.frontend --http-host 0.0.0.0 --http-port 9001 --router-mode round-robin "
        "--migration-limit 2 --namespace ns --router-session-affinity-ttl-secs 60 "
        "--router-temperature 0.5"
    )
    assert spec.env["DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS"] == "120"
    assert (spec.role, spec.endpoint, spec.restart_limit) == (Role.FRONTEND, None, 0)


def test_broker_takes_the_place_of_the_prefill_component_and_may_restart() -> None:
    specs = plan(dynamo={"namespace": "ns"}, router={"restart_limit": 2})
    router = specs["router"]
    assert router.argv == ("PY", "-m", "controller", "router", "--config", f"{RUN}/config.yaml")
    assert (router.endpoint, router.instances) == ("ns.prefill.generate", 1)
    assert router.restart_limit == 2
    assert specs["prefill-0"].endpoint == "ns-prefill.prefill.generate"
    assert specs["decode-0"].endpoint == "ns.backend.generate"


def test_replicas_are_routers_of_one_endpoint_numbered_from_the_second_on() -> None:
    specs = plan(router={"replicas": 3, "redis": {}}, dynamo={"component_suffix": "-b"})
    routers = [spec for spec in specs.values() if spec.role is Role.ROUTER]
    assert [spec.name for spec in routers] == ["router", "router-1", "router-2"]
    assert [spec.argv[-2:] for spec in routers[1:]] == [("--replica", "1"), ("--replica", "2")]
    assert "--replica" not in routers[0].argv
    assert {spec.endpoint for spec in routers} == {"dynamo.prefill-b.generate"}
    assert specs["decode-0"].endpoint == "dynamo.backend-b.generate"


def test_without_attachment_prefill_workers_are_where_stock_has_them() -> None:
    specs = plan(router={"attachment": "none"})
    assert "router" not in specs
    assert specs["prefill-0"].endpoint == "dynamo.prefill.generate"


def test_emulated_workers_share_processes_and_the_last_takes_the_rest() -> None:
    specs = plan(decode={"workers": 5, "workers_per_process": 2})
    decode = [spec for spec in specs.values() if spec.role is Role.DECODE]
    assert [spec.name for spec in decode] == ["decode-0", "decode-1", "decode-2"]
    assert [spec.argv[-4:] for spec in decode] == [
        ("--index", "0", "--count", "2"),
        ("--index", "2", "--count", "2"),
        ("--index", "4", "--count", "1"),
    ]
    assert [spec.instances for spec in decode] == [2, 2, 1]


def test_external_parts_are_not_launched() -> None:
    specs = plan(
        frontend={"launch": False},
        router={"attachment": "none"},
        prefill={"engine": "external"},
        decode={"engine": "external"},
    )
    assert specs == {}


def test_vllm_workers_follow_one_by_one_on_side_channels_of_their_own() -> None:
    pool = {"engine": "vllm", "workers": 2, "vllm": {"python": "VPY", "args": ["--max-num-seqs=8"]}}
    specs = plan(model="org/model", prefill=pool, decode=pool)
    workers = [specs[name] for name in ("prefill-0", "prefill-1", "decode-0", "decode-1")]
    assert [spec.stage for spec in workers] == [1, 2, 3, 4]
    ports = [spec.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for spec in workers]
    assert ports == ["20097", "20098", "20099", "20100"]
    assert " ".join(workers[0].argv) == (
        "VPY -m dynamo.vllm --model org/model --max-num-seqs=8 --disaggregation-mode prefill "
        "--endpoint dyn://dynamo-prefill.prefill.generate"
    )
    assert workers[2].argv[-1] == "dyn://dynamo.backend.generate"
    # It takes over the workers' model card, so it comes after them.
    assert (specs["frontend"].stage, specs["router"].stage) == (0, 5)
    assert list(specs)[-1] == "router"


def test_vllm_keeps_a_model_named_in_its_own_arguments() -> None:
    pool = {"engine": "vllm", "vllm": {"args": ["--model", "/m"], "env": {"UCX_TLS": "tcp"}}}
    spec = plan(model="org/model", decode=pool)["decode-0"]
    assert spec.argv.count("--model") == 1
    assert spec.env["UCX_TLS"] == "tcp"


def test_discovery_and_generated_model_live_in_the_run_folder() -> None:
    env = plan()["decode-0"].env
    assert env["DYN_DISCOVERY_BACKEND"] == "file"
    assert env["DYN_FILE_KV"] == f"{RUN}/discovery"
    assert (env["DYN_REQUEST_PLANE"], env["DYN_EVENT_PLANE"]) == ("tcp", "zmq")
    assert env["HF_HOME"] == f"{RUN}/hf"
    assert (env["HF_HUB_CACHE"], env["HF_HUB_OFFLINE"]) == (f"{RUN}/hf/hub", "1")
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["DYN_EQUILIBRIUM_RUN_DIR"] == str(RUN)


def test_other_models_keep_the_operators_hub_cache() -> None:
    env = plan(model="org/model", environ={"HF_HOME": "/home/me/hf"})["decode-0"].env
    assert not {"HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"} & set(env)


def test_etcd_discovery_gets_no_folder_and_no_loopback_binding() -> None:
    env = plan(dynamo={"discovery_backend": "etcd"})["decode-0"].env
    assert "DYN_FILE_KV" not in env
    assert "DYN_TCP_RPC_HOST" not in env


def test_operator_environment_beats_defaults_and_the_file_beats_both() -> None:
    environ = {"DYN_LOG": "debug", "DYN_TCP_RPC_HOST": "10.0.0.1"}
    env = plan(environ)["decode-0"].env
    assert not {"DYN_LOG", "DYN_TCP_RPC_HOST"} & set(env)  # inherited as they are
    assert plan()["decode-0"].env["DYN_LOG"] == "warn"
    assert plan(environ, dynamo={"env": {"DYN_LOG": "info"}})["decode-0"].env["DYN_LOG"] == "info"


def test_variables_that_would_move_a_process_elsewhere_are_not_inherited() -> None:
    environ = {"DYN_NAMESPACE_PREFIX": "dynamo", "DYN_SYSTEM_PORT": "9090", "HOME": "/home/me"}
    assert inherited(environ) == {"HOME": "/home/me"}


def test_own_processes_find_this_checkout_and_stock_ones_are_left_alone() -> None:
    specs = plan({"PYTHONPATH": "/opt/lib"})
    root = str(Path(controller.__file__).resolve().parent.parent)
    assert specs["router"].env["PYTHONPATH"] == os.pathsep.join([root, "/opt/lib"])
    assert "PYTHONPATH" not in specs["frontend"].env
