# SPDX-License-Identifier: Apache-2.0
"""The file of a simulation, schema `equilibrium.simulation/1`, and a deployment read as one.

Owns: names, defaults and their checks. What a live deployment has too is called the same and, where
it means the same, is the same model (controller.config). Pure: text has been read by somebody else.
Does not own: what is built from it (configured.py), the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from controller.config import (
    ConfigError,
    ConfigModel,
    DeploymentConfig,
    DynamoName,
    PoolConfig,
    PositiveFloat,
    PositiveInt,
    RuleConfig,
    SloConfig,
    TollConfig,
    load_mapping,
    validated,
)
from controller.simulation.cluster.events import EventKind
from controller.simulation.cluster.placement import PLACEMENTS
from controller.simulation.cluster.spec import BINDINGS

SCHEMA = "equilibrium.simulation/1"
DEFAULT_PROFILE = "dense70b_tp4"
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SpeculationConfig(ConfigModel):
    """Speculative decoding, a sequence and decode step."""

    verified_tokens: PositiveInt = Field(description="tokens computed: 1 + drafts")
    emitted_tokens: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        description="tokens that stay, mean: 1 + accepted drafts"
    )

    @model_validator(mode="after")
    def _check(self) -> SpeculationConfig:
        if self.emitted_tokens > self.verified_tokens:
            raise ValueError(
                f"emitted_tokens {self.emitted_tokens:g} is above verified_tokens "
                f"{self.verified_tokens}"
            )
        return self


class SimulatedEngine(ConfigModel):
    """One engine. What is left out is as the profile says, where the profile says it."""

    profile: str | None = Field(default=None, description="default: the file's `profile`")
    slowdown: PositiveFloat = Field(default=1.0, description="multiplies compute times")
    block_size: PositiveInt | None = None
    num_blocks: PositiveInt | None = None
    max_num_batched_tokens: PositiveInt | None = None
    max_num_seqs: PositiveInt | None = None
    prefix_cache: bool = True
    kv_lease_s: PositiveFloat = 30.0
    charge_local_prefill: bool = Field(default=True, description="false: decodes prefill for free")
    watermark_blocks: int = Field(default=0, ge=0, description="that an admission leaves free")
    cold_start_s: Share = Field(default=0.0, description="from a join to serving")
    prefill_first: bool = Field(default=False, description="prompt steps pause the decodes")
    reserve_prompt: bool = Field(default=False, description="admit whole prompts only")
    async_scheduling: bool = Field(
        default=False, description="compose a step when the one before starts (vLLM's default)"
    )
    speculation: SpeculationConfig | None = Field(
        default=None, description="speculative decoding; default: the profile's"
    )


class SimulatedGroup(ConfigModel):
    """Workers of one pool that are alike."""

    workers: int = Field(default=1, ge=0, le=100_000)
    present: bool = Field(default=True, description="false: away until an event joins them")
    emulated: SimulatedEngine = SimulatedEngine()


class SimulatedRouter(RuleConfig):
    """Rules, and what the router does not know. Reports and costs are perfect by default."""

    policy: str = Field(default="ampd", description="placement rule")
    toll: TollConfig = Field(
        default=TollConfig(), description="its local_chunk_tokens caps every local prefill's chunks"
    )
    binding: str = Field(default="least_context", description="of sessions to decode workers")
    in_flight_steps: PositiveInt = Field(
        default=2, description="full steps in flight at a prefill worker"
    )
    report_delay_s: Share = Field(default=0.0, description="age of what decode workers report")
    cost_error: Share = Field(default=0.0, description="sigma of the log of predicted times")
    cost_bias: PositiveFloat = Field(default=1.0, description="median factor on predicted times")
    migration_limit: int = Field(
        default=0, ge=0, description="moves of a stream whose decode worker fails"
    )

    @field_validator("policy", "binding")
    @classmethod
    def _known(cls, value: str, info: Any) -> str:
        known: Mapping[str, int] = PLACEMENTS if info.field_name == "policy" else BINDINGS
        if value not in known:
            raise ValueError(f"{value!r} is not known; known: {', '.join(sorted(known))}")
        return value


class TransferConfig(ConfigModel):
    """KV on its way between workers; left out: as the decode worker's profile says."""

    mode: Literal["recompute", "history_read"] = Field(
        default="recompute", description="of history that only the decode worker holds"
    )
    contention: bool = Field(default=True, description="transfers of one link wait in turn")
    latency_ms: Share | None = None
    bandwidth_gb_s: PositiveFloat | None = None


class EventConfig(ConfigModel):
    """What happens to one worker, numbered from 0 in its pool as the file lists them."""

    at_s: Share
    kind: EventKind
    pool: Literal["prefill", "decode"]
    worker: int = Field(ge=0)


def groups_of(value: Any) -> Any:
    """`prefill: 2` and `prefill: {workers: 2}` are short for a list with one group.

    What is neither stays as it is, for the checks to name.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return [{"workers": value}]
    return [value] if isinstance(value, (dict, SimulatedGroup)) else value


class SimulationConfig(ConfigModel):
    """One cluster and its router: `equilibrium simulate --config FILE`."""

    schema_version: Literal["equilibrium.simulation/1"] = Field(alias="schema")
    name: DynamoName = "simulation"
    profile: str = Field(default=DEFAULT_PROFILE, description="of groups that name none")
    slo: SloConfig = SloConfig()
    router: SimulatedRouter = SimulatedRouter()
    transfer: TransferConfig = TransferConfig()
    prefill: list[SimulatedGroup] = Field(default_factory=lambda: [SimulatedGroup()])
    decode: list[SimulatedGroup] = Field(default_factory=lambda: [SimulatedGroup()])
    events: list[EventConfig] = Field(default_factory=list, description="failures and scale events")
    until_s: PositiveFloat | None = Field(
        default=None, description="end of the run; what has not ended by then is unfinished"
    )

    @field_validator("prefill", "decode", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return groups_of(value)

    @field_validator("decode")
    @classmethod
    def _someone(cls, value: list[SimulatedGroup]) -> list[SimulatedGroup]:
        if not any(group.workers for group in value):
            raise ValueError("no decode worker; give at least one")
        return value

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names or paths of every profile that the file needs, each once."""
        groups = (*self.prefill, *self.decode)
        return tuple(dict.fromkeys(group.emulated.profile or self.profile for group in groups))


def parse_simulation(
    text: str, source: str, change: Callable[[dict[str, Any]], None] = lambda raw: None
) -> SimulationConfig:
    """Parse a simulation file, or a deployment file as the simulation of what it deploys.

    `change` may edit the keys of the simulation before they are checked (arguments of a command).
    ConfigError: one line that names the file and the key.
    """
    raw = load_mapping(text, source)
    if str(raw.get("schema", "")).startswith("equilibrium.deployment/"):
        raw = simulation_of(validated(DeploymentConfig, raw, source), source)
    change(raw)
    return validated(SimulationConfig, raw, source)


def simulation_of(config: DeploymentConfig, source: str) -> dict[str, Any]:
    """The keys of the simulation of a deployment whose workers are emulated.

    Both sides have the same engines, rule and SLO. The emulated workers' links do not wait for
    each other, so the simulated ones do not either.
    """
    router = config.router
    if router.attachment == "none":
        raise ConfigError(
            f"{source}: router.attachment is none: Dynamo's own router is not simulated; set "
            "broker or relay, or give a simulation file"
        )
    names = set(RuleConfig.model_fields) | {"policy"}
    return {
        "schema": SCHEMA,
        "name": config.name,
        "slo": config.slo.model_dump(include=set(SloConfig.model_fields)),
        "router": {
            **router.model_dump(include=names),
            "migration_limit": config.frontend.migration_limit,
        },
        "transfer": {"contention": False},
        "prefill": [_group_of(config.prefill, f"{source}: prefill")],
        "decode": [_group_of(config.decode, f"{source}: decode")],
    }


def _group_of(pool: PoolConfig, where: str) -> dict[str, Any]:
    if pool.engine != "emulated":
        raise ConfigError(
            f"{where}.engine is {pool.engine}: only emulated workers have a profile to simulate; "
            "give a simulation file"
        )
    return {"workers": pool.workers, "emulated": pool.emulated.model_dump()}
