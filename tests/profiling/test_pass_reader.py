# SPDX-License-Identifier: Apache-2.0
"""From Dynamo's messages to passes, and where they are listened for."""

import pytest

from controller.config import DynamoConfig
from controller.errors import UserError
from controller.runtime.clock import Clock
from controller.runtime.profiling.live import PassReader
from controller.runtime.profiling.target import PoolChoice, of_config, of_names, of_run
from controller.runtime.resources import read_deployment_with

pytestmark = pytest.mark.unit


def message(counter=1, worker="255", dp_rank=0, wall_time=0.02):
    from dynamo.common.forward_pass_metrics import ForwardPassMetrics, ScheduledRequestMetrics

    return ForwardPassMetrics(
        worker_id=worker,
        dp_rank=dp_rank,
        counter_id=counter,
        wall_time=wall_time,
        scheduled_requests=ScheduledRequestMetrics(
            num_prefill_requests=1,
            sum_prefill_tokens=100,
            sum_prefill_kv_tokens=640,
            num_decode_requests=3,
            sum_decode_kv_tokens=9000,
        ),
    )


def test_a_message_becomes_a_pass_with_its_worker_in_hex():
    one = PassReader(Clock()).read(message())
    assert (one.worker, one.batch, one.context) == ("ff", 3, 9000)
    assert (one.prefills, one.chunk, one.history, one.wall_s) == (1, 100, 640, 0.02)


def test_data_parallel_ranks_are_workers_of_their_own():
    reader = PassReader(Clock())
    assert [reader.read(message(dp_rank=rank)).worker for rank in (0, 1)] == ["ff", "ff.1"]


def test_missing_messages_are_counted_per_worker():
    reader = PassReader(Clock())
    for counter, worker in ((1, "1"), (2, "1"), (7, "2"), (5, "1"), (8, "2")):
        reader.read(message(counter, worker))
    assert reader.lost == 2


def test_a_namespace_stands_for_dynamo_s_usual_endpoints():
    assert of_names("ns", (), DynamoConfig(), PoolChoice.BOTH).endpoints == (
        "ns.prefill.generate",
        "ns.backend.generate",
    )
    only = of_names("ns", (), DynamoConfig(), PoolChoice.DECODE)
    assert only.endpoints == ("ns.backend.generate",)


def test_a_deployment_file_is_followed_where_its_workers_register(tmp_path):
    path = tmp_path / "external.yaml"
    path.write_text(
        "schema: equilibrium.deployment/1\n"
        f"dynamo: {{namespace: prod, file_kv: {tmp_path}}}\n"
        "time_scale: 2.0\n"
        "router: {attachment: broker}\n"
    )
    target = of_config(str(path), PoolChoice.BOTH)
    assert target.endpoints == ("prod-prefill.prefill.generate", "prod.backend.generate")
    assert target.environ["DYN_FILE_KV"] == str(tmp_path)
    assert target.time_scale == 2.0


def test_a_run_folder_gives_its_discovery(tmp_path):
    import yaml

    config = read_deployment_with("local_1p2d")
    text = yaml.safe_dump(config.model_dump(mode="json", by_alias=True))
    (tmp_path / "config.yaml").write_text(text)
    target = of_run(tmp_path, PoolChoice.PREFILL)
    assert target.endpoints == ("dynamo-prefill.prefill.generate",)
    assert target.environ["DYN_FILE_KV"] == str(tmp_path / "discovery")


def test_a_folder_that_is_no_run_says_what_to_give(tmp_path):
    with pytest.raises(UserError, match="--endpoint"):
        of_run(tmp_path, PoolChoice.BOTH)
