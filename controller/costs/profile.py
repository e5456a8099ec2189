# SPDX-License-Identifier: Apache-2.0
"""Profile files: the tables of a cost model with provenance, licence and their own error.

Owns: the schema `equilibrium.profile/2` (JSON or YAML), its validation and its writing. Pure:
parses text that somebody else has read. Errors name the field (`ProfileError`).
Does not own: what the tables mean (tables), fitting (fit, op_profiles).
"""

from __future__ import annotations

import json
import math
from typing import Any

import yaml
from pydantic import ValidationError

from controller.costs import checks
from controller.costs.errors_report import Ape, FitErrors
from controller.costs.model import TableCost
from controller.costs.profile_fields import (
    Engine,
    FitError,
    KvTransfer,
    Parallelism,
    ProfileFields,
    Range,
    Speculation,
    Step,
)
from controller.costs.profile_steps import FILE_FIELDS, engine_vectors, rounded, step_of, tables_of
from controller.costs.tables import (
    BANDWIDTH_BYTES_S,
    BYTES_PER_TOKEN,
    EMITTED,
    LATENCY_S,
    VERIFIED,
    StepTables,
    scaled,
)
from controller.errors import UserError


class ProfileError(UserError):
    """A profile that cannot be used; the message names the field and the fix."""


class Profile(ProfileFields):
    """One profile file, schema `equilibrium.profile/2`; units are in the field names."""

    def tables(self) -> StepTables:
        """The tables in seconds."""
        return tables_of(self)

    def cost_model(self, slowdown: float = 1.0) -> TableCost:
        """The cost model of this profile with compute times multiplied by `slowdown`."""
        tables = self.tables()
        return TableCost(tables if slowdown == 1.0 else scaled(tables, slowdown))

    @classmethod
    def from_fit(
        cls,
        tables: StepTables,
        errors: FitErrors | None,
        *,
        name: str,
        provenance: str,
        license: str,
        model: str,
        gpu: str,
        precision: str,
        parallelism: Parallelism,
        engine: Engine,
    ) -> Profile:
        """A profile of fitted tables. `engine` gives what the tables do not hold; its capture
        sizes are taken from the tables. Raises ProfileError if the tables break a rule."""
        wrong = checks.problem(tables)
        if wrong is not None:
            raise ProfileError(f"profile {name}: {FILE_FIELDS[wrong.field]}: {wrong.what}")
        tables = rounded(tables)
        return cls(
            schema="equilibrium.profile/2",
            name=name,
            provenance=provenance,
            license=license,
            model=model,
            gpu=gpu,
            precision=precision,
            parallelism=parallelism,
            engine=engine.model_copy(update=engine_vectors(tables)),
            step=step_of(tables),
            kv_transfer=_transfer_of(tables),
            speculation=_speculation_of(tables),
            fit_error=_error_of(errors),
        )


def parse_profile(text: str, source: str) -> Profile:
    """Parse a profile; `source` (a path or name) goes into the message of a ProfileError."""
    try:
        profile = Profile.model_validate(_loaded(text, source))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        message = first["msg"].removeprefix("Value error, ")
        raise ProfileError(f"profile {source}: {field}: {message}") from None
    wrong = checks.problem(profile.tables())
    if wrong is not None:
        raise ProfileError(f"profile {source}: {FILE_FIELDS[wrong.field]}: {wrong.what}")
    return profile


def dump_profile(profile: Profile) -> str:
    """The JSON text of a profile: one table a line, six significant digits."""
    values = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    return _pretty(values, 0) + "\n"


def _loaded(text: str, source: str) -> Any:
    """JSON first: YAML 1.1 reads 1e-05 as a text."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ProfileError(f"profile {source}: file: neither JSON nor YAML") from None
    if not isinstance(value, dict):
        raise ProfileError(f"profile {source}: file: expected an object of fields")
    return value


def _pretty(value: Any, depth: int) -> str:
    """Objects over several lines, lists on one; floats with six significant digits."""
    if isinstance(value, dict):
        inner = "  " * (depth + 1)
        lines = [f"{inner}{json.dumps(k)}: {_pretty(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
    if isinstance(value, list):
        return "[" + ",".join(_pretty(item, depth) for item in value) + "]"
    if isinstance(value, float):
        short = f"{value:.6g}"
        return short if math.isfinite(value) else json.dumps(value)
    return json.dumps(value)


def _transfer_of(t: StepTables) -> KvTransfer:
    return KvTransfer(
        latency_ms=t.transfer[LATENCY_S] * 1e3,
        bytes_per_token=t.transfer[BYTES_PER_TOKEN],
        bandwidth_gb_s=t.transfer[BANDWIDTH_BYTES_S] / 1e9,
    )


def _speculation_of(t: StepTables) -> Speculation | None:
    verified, emitted = float(t.options[VERIFIED]), float(t.options[EMITTED])
    if verified == 1.0 and emitted == 1.0:
        return None
    return Speculation(verified_tokens=int(verified), emitted_tokens=emitted)


def _error_of(errors: FitErrors | None) -> FitError | None:
    if errors is None:
        return None
    return FitError(
        held_out=errors.held_out,
        overall=_range(errors.overall),
        by_kind={str(getattr(k, "value", k)): _range(v) for k, v in errors.by_kind.items()},
    )


def _range(errors: Ape) -> Range:
    return Range(median_pct=errors.median_pct, p95_pct=errors.p95_pct, count=errors.count)


__all__ = [
    "Engine",
    "Parallelism",
    "Profile",
    "ProfileError",
    "Step",
    "dump_profile",
    "parse_profile",
]
