# SPDX-License-Identifier: Apache-2.0
"""Finding shipped files and replacing keys, and what is said when that fails."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from controller.errors import UserError
from controller.runtime.resources import (
    Kind,
    find,
    parse_override,
    read_deployment_with,
    read_profile,
    shipped,
)

pytestmark = pytest.mark.unit


def test_every_shipped_profile_and_deployment_can_be_read() -> None:
    assert "dense70b_tp4" in shipped(Kind.PROFILE)
    assert "local_1p2d" in shipped(Kind.DEPLOYMENT)
    for name in shipped(Kind.PROFILE):
        assert read_profile(name).name == name
    for name in shipped(Kind.DEPLOYMENT):
        read_deployment_with(name)


def test_path_works_and_wins_over_a_shipped_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = shipped(Kind.PROFILE)["dense70b_tp4"]
    text = source.read_text().replace('"name": "dense70b_tp4"', '"name": "mine"')
    (tmp_path / "dense70b_tp4").write_text(text)
    assert read_profile("dense70b_tp4").name == "mine"
    shutil.copy(source, tmp_path / "copy.json")
    assert read_profile(tmp_path / "copy.json").name == "dense70b_tp4"


@pytest.mark.parametrize("kind", [Kind.DEPLOYMENT, Kind.TRACE])
def test_an_unknown_name_lists_the_few_known_ones(kind: Kind) -> None:
    with pytest.raises(UserError) as caught:
        find(kind, "nope")
    names = ", ".join(shipped(kind)) or "none"
    assert str(caught.value) == f"{kind.value} nope does not exist; shipped by name: {names}"


def test_a_mistyped_name_among_many_gets_the_nearest_and_how_to_list_all() -> None:
    with pytest.raises(UserError) as caught:
        find(Kind.PROFILE, "mixtral_8x7_tp2_h100")
    said = str(caught.value)
    near = said.split("by name: ")[1].partition(";")[0].split(", ")
    assert near[0] == "mixtral_8x7b_tp2_h100" and len(near) == 3
    assert set(near) < set(shipped(Kind.PROFILE))
    assert said.endswith("; all: equilibrium profile list")


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        find(Kind.PROFILE, tmp_path)


def test_file_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        read_deployment_with(tmp_path / "x.yaml")


def test_override_replaces_one_key_and_may_make_its_group(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("schema: equilibrium.deployment/1\nfrontend:\n")
    overrides = [
        parse_override("frontend.http_port=8123"),
        parse_override("frontend.extra_args=[--x, y=z]"),
        parse_override("router.attachment=none"),
        parse_override("dynamo.file_kv="),
    ]
    config = read_deployment_with(path, overrides)
    assert config.frontend.http_port == 8123
    assert config.frontend.extra_args == ["--x", "y=z"]
    assert config.router.attachment == "none"
    assert config.dynamo.file_kv is None


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", ".a=1", "a=[1"])
def test_malformed_override_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"^--set "):
        parse_override(text)


def test_override_below_a_value_is_named() -> None:
    with pytest.raises(UserError, match=r"^--set model\.name: model is a value"):
        read_deployment_with("local_1p2d", [("model.name", 1)])


def test_override_of_an_unknown_key_gets_the_usual_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'workers'"):
        read_deployment_with("local_1p2d", [("decode.worker", 3)])


def test_file_that_is_not_yaml_is_reported_as_without_overrides(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [")
    with pytest.raises(UserError, match="not YAML"):
        read_deployment_with(tmp_path / "x.yaml", [("model", "m")])
