# SPDX-License-Identifier: Apache-2.0
"""Two models behind one frontend, each with a router of its own; one model's router dies."""

import os
import signal

import pytest
from up_kit import Up, make_config

from controller.runtime.launcher import Deployment

pytestmark = pytest.mark.e2e

OTHER = "equilibrium/tiny-other"


@pytest.mark.parametrize("attachment", ["broker", "relay"])
async def test_two_models_share_a_frontend_and_nothing_else(launch, tmp_path, attachment):
    shared = {
        "dynamo__file_kv": str(tmp_path / "discovery"),
        "dynamo__env": {"HF_HOME": str(tmp_path / "hf")},
        "router__policy": "always_remote",
        "router__attachment": attachment,
        "decode__workers": 1,
    }
    async with launch(**shared) as it:
        port = it.deployment.config.frontend.http_port
        second = make_config(
            tmp_path,
            name="other",
            model=OTHER,
            dynamo__component_suffix="-other",
            router__prefill_namespace="other-prefill",
            router__decode_namespace="other-decode",
            frontend__launch=False,
            frontend__http_port=port,
            **shared,
        )
        async with Deployment.start(second) as other:
            there = Up(other, it.http)
            for _ in range(3):
                assert (await it.chat("hello"))["status"] == 200
                assert (await it.chat("hello", model=OTHER))["status"] == 200
            assert len(it.decisions()) == len(there.decisions()) == 3
            assert not {d["worker_id"] for d in it.decisions()} & {
                d["worker_id"] for d in there.decisions()
            }
            os.kill(other.process("router").pid, signal.SIGKILL)
            for _ in range(3):
                assert (await it.chat("hello"))["status"] == 200
