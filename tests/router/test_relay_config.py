# SPDX-License-Identifier: Apache-2.0
"""Where everything registers in a relay deployment, and which of its settings are refused."""

from pathlib import Path

import pytest

from controller.config import ConfigError, DeploymentConfig, parse_deployment
from controller.runtime.launcher import plan_processes

pytestmark = pytest.mark.unit

HEAD = "schema: equilibrium.deployment/1\ndynamo: {namespace: ns}\n"


def deployment(router: str) -> DeploymentConfig:
    return parse_deployment(f"{HEAD}router: {router}\n", "test")


def test_both_pools_are_hidden_behind_a_relay_and_it_is_a_component_of_its_own():
    config = deployment("{attachment: relay}")
    specs = {spec.name: spec for spec in plan_processes(config, Path("/run"), python="PY")}
    assert specs["router"].endpoint == "ns.relay.generate"
    assert specs["prefill-0"].endpoint == "ns-prefill.prefill.generate"
    assert specs["decode-0"].endpoint == "ns-decode.backend.generate"
    frontend = " ".join(specs["frontend"].argv)
    assert "--router-mode round-robin --migration-limit 3 --namespace ns" in frontend


def test_only_a_relay_hides_the_decode_workers():
    for attachment in ("none", "broker"):
        config = deployment(f"{{attachment: {attachment}, decode_namespace: other}}")
        assert config.decode_endpoint == "ns.backend.generate"
    config = deployment("{attachment: relay, decode_namespace: other}")
    assert config.decode_endpoint == "other.backend.generate"
    assert deployment("{attachment: broker}").router_endpoint == "ns.prefill.generate"


def test_vllm_decode_workers_register_where_the_relay_looks():
    text = f"{HEAD}model: org/m\nrouter: {{attachment: relay}}\ndecode: {{engine: vllm}}\n"
    config = parse_deployment(text, "test")
    specs = {spec.name: spec for spec in plan_processes(config, Path("/run"), python="PY")}
    assert specs["decode-0"].argv[-1] == "dyn://ns-decode.backend.generate"


@pytest.mark.parametrize(
    ("router", "words"),
    [
        ("{attachment: relay, decode_namespace: ns}", "past the relay"),
        ("{kv_lease_s: 5, kv_lease_margin_s: 5}", "young enough"),
        ("{replicas: 2}", "need redis"),
        ("{redis: {url: localhost}}", "redis.url"),
        ("{redis: {period_s: 1, member_ttl_s: 3}}", "a late sign of life"),
    ],
)
def test_settings_that_cannot_work_are_refused(router, words):
    with pytest.raises(ConfigError, match=words):
        deployment(router)
