# SPDX-License-Identifier: Apache-2.0
"""Every configuration file of the project, as pydantic models. Unknown keys are errors.

Pure: `parse_deployment` takes text. `ConfigError` carries one line that says what is wrong,
where, and what to do. Times that end in `_s` and `_ms` are emulated time (see `time_scale`)
unless the field says wall clock.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from controller.errors import UserError
from controller.types import OrderingName, PlacementName, RoutingParams, Slo, TollParams

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
DynamoName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]

_MOST_WINDOW = 5  # routing.kernels.orderings.MOST_WINDOW
_TELL_LATE = ("hopeless_last", "earliest_deadline", "moore_hodgson")


class ConfigError(UserError):
    """A configuration that cannot be used; str() is one line for the operator."""


class ConfigModel(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ModelT = TypeVar("ModelT", bound=ConfigModel)


class DynamoConfig(ConfigModel):
    """How the processes find and reach each other (names as Dynamo's own flags)."""

    namespace: DynamoName = "dynamo"
    discovery_backend: Literal["file", "etcd", "kubernetes", "mem"] = "file"
    request_plane: Literal["tcp", "nats"] = "tcp"
    event_plane: Literal["zmq", "nats"] = "zmq"
    file_kv: str | None = Field(
        default=None, description="folder of file discovery; default: inside the run folder"
    )
    component_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = Field(
        default="",
        description="behind the name of each component, so that deployments of several models "
        "can share a namespace and a frontend (docs/models.md)",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="extra environment of every launched process"
    )


class FrontendConfig(ConfigModel):
    """The stock `dynamo.frontend`."""

    launch: bool = Field(default=True, description="false: a frontend runs already")
    http_host: str = "127.0.0.1"
    http_port: Port = 8000
    router_mode: Literal["kv", "round-robin", "random", "least-loaded", "power-of-two"] = "kv"
    migration_limit: int = Field(default=3, ge=0)
    session_affinity_ttl_s: PositiveInt | None = Field(
        default=None, description="wall clock; None: sessions are not pinned by the frontend"
    )
    stream_timeout_s: PositiveInt | None = Field(
        default=None,
        description="wall clock, DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS; None: no time-out",
    )
    extra_args: list[str] = Field(default_factory=list)


class SloConfig(ConfigModel):
    """Service level objective."""

    ttft_ms: PositiveFloat = 1500.0
    itl_ms: PositiveFloat = 60.0

    def value(self) -> Slo:
        """The frozen value the core speaks."""
        return Slo(ttft_ms=self.ttft_ms, itl_ms=self.itl_ms)


class TenantConfig(SloConfig):
    """One tenant's objective and share."""

    weight: PositiveFloat = Field(
        default=1.0,
        description="share of a first-come queue (fifo, hopeless_last, algorithm_2), beside those "
        "of the other tenants; requests without a tenant together count as one of weight 1",
    )


class DeploymentSloConfig(SloConfig):
    """The objective of all requests but those of the named tenants."""

    tenants: dict[str, TenantConfig] = Field(
        default_factory=dict,
        description="by tenant: requests name theirs with the annotation `tenant:NAME`",
    )

    def of_tenants(self) -> dict[str, Slo]:
        """The frozen values of the tenants."""
        return {name: slo.value() for name, slo in self.tenants.items()}

    def weights_of_tenants(self) -> dict[str, float]:
        """Their shares of a first-come queue."""
        return {name: tenant.weight for name, tenant in self.tenants.items()}


class OrderingConfig(ConfigModel):
    """Whose prefill is sent next of those that wait for a worker."""

    rule: OrderingName = "fifo"
    window: PositiveInt = Field(
        default=3, description="tasks that algorithm_2 (1 to 5) or moore_hodgson look at"
    )
    late_share: float = Field(
        default=0.0, ge=0, lt=1, description="share of prefill tokens kept for late work"
    )
    max_wait_s: PositiveFloat | None = Field(
        default=None, description="what has waited this long goes first; None: no such bound"
    )
    passed_cap: int = Field(
        default=0, ge=0, description="times that later ones may pass a prefill; 0: any number"
    )
    reject: bool = Field(
        default=False,
        description="refuse what cannot be in time any more (HTTP 529) instead of queueing it",
    )

    @model_validator(mode="after")
    def _check(self) -> OrderingConfig:
        if self.rule == "algorithm_2" and self.window > _MOST_WINDOW:
            raise ValueError(f"window of algorithm_2 must be 1 to {_MOST_WINDOW}")
        if self.reject and self.rule not in _TELL_LATE:
            raise ValueError(
                f"reject needs a rule that tells late work: {', '.join(_TELL_LATE)}, "
                f"not {self.rule}"
            )
        return self


class TollConfig(ConfigModel):
    """The `toll` policy's knobs."""

    expected_error: float = Field(
        default=0.2, ge=0, description="relative standard deviation of predicted times"
    )
    itl_guard: PositiveFloat = Field(
        default=0.8, description="share of the ITL limit that a step with a local chunk may take"
    )
    local_chunk_tokens: int = Field(
        default=0, ge=0, description="most prompt tokens of a local step; 0: the engine's budget"
    )
    least_chance: float = Field(
        default=0.7, ge=0, le=1, description="a local prefill needs this chance to be in time"
    )


class RuleConfig(ConfigModel):
    """The rules' knobs, live and simulated."""

    ordering: OrderingConfig = OrderingConfig()
    toll: TollConfig = TollConfig()
    alpha: PositiveFloat = 0.9
    beta: PositiveFloat = 0.85
    window_s: PositiveFloat = 10.0
    seed: int = Field(default=0, ge=0, description="of the policy's own random numbers")

    def params(self) -> RoutingParams:
        """The frozen knobs the core speaks."""
        toll = TollParams(**self.toll.model_dump())
        return RoutingParams(self.alpha, self.beta, self.window_s, toll)


class RedisConfig(ConfigModel):
    """Redis between router replicas; nothing of a request waits for it."""

    url: str = Field(default="redis://127.0.0.1:6379/0", pattern=r"^(rediss?|unix)://")
    prefix: str = Field(default="equilibrium", description="of every key and channel")
    period_s: PositiveFloat = Field(
        default=0.1, description="wall clock, between two tellings of a router's books"
    )
    member_ttl_s: PositiveFloat = Field(
        default=3.0, description="wall clock, without a sign of life a router is no member any more"
    )
    host: str = Field(
        default="127.0.0.1",
        description="where a router listens for its replicas; one machine: loopback",
    )

    @model_validator(mode="after")
    def _check(self) -> RedisConfig:
        if self.member_ttl_s < 5 * self.period_s:
            raise ValueError(
                f"member_ttl_s {self.member_ttl_s:g} is below five periods of {self.period_s:g} s: "
                "a late sign of life would end a membership"
            )
        return self


class DecisionLogConfig(ConfigModel):
    """The decision log of a router (docs/decision_log.md)."""

    max_mb: float = Field(
        default=64.0, ge=0, description="size of one file, then a new one is begun; 0: no log"
    )
    files: PositiveInt = Field(default=4, description="files kept, the current one included")


class RouterConfig(RuleConfig):
    """Our router; `attachment: none` leaves the stock deployment as it is."""

    attachment: Literal["none", "broker", "relay"] = "broker"
    policy: PlacementName = Field(default="ampd", description="where a prefill runs")
    mode: Literal["act", "shadow"] = Field(
        default="act", description="at start; `equilibrium mode` switches a running router"
    )
    profile: str = Field(
        default="dense70b_tp4", description="shipped profile name or path: cost estimates"
    )
    prefill_namespace: DynamoName | None = Field(
        default=None, description="private namespace of the prefill workers; default NS-prefill"
    )
    decode_namespace: DynamoName | None = Field(
        default=None,
        description="relay only: private namespace of the decode workers; default NS-decode",
    )
    kv_lease_s: PositiveFloat = Field(
        default=30.0,
        description="how long the prefill engines keep handed-over KV (vLLM: kv_lease_duration)",
    )
    kv_lease_margin_s: PositiveFloat = Field(
        default=5.0,
        description="a hand-over older than kv_lease_s less this is dropped and prefilled again",
    )
    max_num_batched_tokens: PositiveInt = Field(
        default=2048, description="of the prefill engines: sizes the in-flight bound"
    )
    max_wait_s: PositiveFloat = Field(
        default=20.0, description="queue wait after which a prefill runs locally instead"
    )
    prefill_timeout_s: PositiveFloat = Field(
        default=60.0, description="silence of a prefill worker after which it counts as failed"
    )
    transfer_timeout_s: PositiveFloat = Field(
        default=30.0,
        description="relay only: from sending a decode leg with a hand-over to its first token; "
        "past it the prompt is prefilled where it streams",
    )
    max_requests: PositiveInt = Field(
        default=8192,
        description="requests that one router holds at once; a relay refuses more (HTTP 529), a "
        "broker answers that they prefill locally",
    )
    late_binding: bool = Field(
        default=True,
        description="a worker with room takes over what waits elsewhere, if it ends earlier",
    )
    decision_log: DecisionLogConfig = DecisionLogConfig()
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="Prometheus port on loopback; 0: any free port, written to the log"
    )
    replicas: PositiveInt = Field(
        default=1, description="routers that the launcher starts; more than one need `redis`"
    )
    redis: RedisConfig | None = Field(
        default=None, description="set: this router may be one of several (docs/replicas.md)"
    )
    restart_limit: int = Field(
        default=3, ge=0, description="times the launcher restarts a router that died"
    )

    @model_validator(mode="after")
    def _check(self) -> RouterConfig:
        if self.kv_lease_margin_s >= self.kv_lease_s:
            raise ValueError(
                f"kv_lease_margin_s {self.kv_lease_margin_s:g} is not below kv_lease_s "
                f"{self.kv_lease_s:g}: no hand-over would be young enough"
            )
        if self.replicas > 1 and self.redis is None:
            raise ValueError(
                f"replicas: {self.replicas} need redis: each would fill the workers' queues as if "
                "it were alone; set redis.url"
            )
        if self.ordering.reject and self.attachment != "relay":
            raise ValueError(
                "ordering.reject needs attachment: relay; behind a broker the frontend turns a "
                "refusal into HTTP 500 without a reason"
            )
        return self


class EmulatedConfig(ConfigModel):
    """The emulated engine: a real Dynamo worker in all but the GPU."""

    profile: str = "dense70b_tp4"
    slowdown: PositiveFloat = Field(default=1.0, description="multiplies compute times")
    block_size: PositiveInt = 64
    num_blocks: PositiveInt = 4096
    max_num_batched_tokens: PositiveInt = 2048
    max_num_seqs: PositiveInt = 256
    prefix_cache: bool = True
    kv_lease_s: PositiveFloat = Field(
        default=30.0, description="how long a finished prefill's blocks wait for the decode leg"
    )
    charge_local_prefill: bool = Field(
        default=True,
        description="false imitates the stock mocker, whose decode worker prefills for free",
    )
    async_scheduling: bool = Field(
        default=False, description="compose a step when the one before starts (vLLM's default)"
    )


class VllmConfig(ConfigModel):
    """A real `dynamo.vllm` worker."""

    python: str = Field(default=".venv-vllm/bin/python", description="interpreter that has vLLM")
    args: list[str] = Field(default_factory=list)
    env: dict[str, str] = Field(default_factory=dict)
    side_channel_port: Port = Field(
        default=20097, description="NIXL side channel of the first worker; the next ones count up"
    )


class PoolConfig(ConfigModel):
    """One pool of workers."""

    engine: Literal["emulated", "vllm", "external"] = "emulated"
    workers: int = Field(default=1, ge=0)
    workers_per_process: PositiveInt = Field(
        default=1, description="emulated workers that share one process"
    )
    emulated: EmulatedConfig = EmulatedConfig()
    vllm: VllmConfig = VllmConfig()


class DeploymentConfig(ConfigModel):
    """One deployment: `equilibrium up --config FILE`."""

    schema_version: Literal["equilibrium.deployment/1"] = Field(alias="schema")
    name: DynamoName = "local"
    model: str = Field(
        default="equilibrium/tiny",
        description="equilibrium/tiny is generated; anything else must be resolvable by Dynamo",
    )
    time_scale: PositiveFloat = Field(
        default=1.0,
        description="wall seconds per emulated second; above 1 a busy machine distorts less",
    )
    ready_timeout_s: PositiveFloat = Field(default=90.0, description="wall clock")
    run_dir: str = Field(default="runs", description="a folder a run is made below it")
    dynamo: DynamoConfig = DynamoConfig()
    frontend: FrontendConfig = FrontendConfig()
    router: RouterConfig = RouterConfig()
    slo: DeploymentSloConfig = DeploymentSloConfig()
    prefill: PoolConfig = PoolConfig()
    decode: PoolConfig = PoolConfig()

    @model_validator(mode="after")
    def _check(self) -> DeploymentConfig:
        timeout_s = self.frontend.stream_timeout_s
        router = self.router
        wait_s = (router.max_wait_s + router.prefill_timeout_s) * self.time_scale
        if self.router.attachment != "none" and timeout_s is not None and wait_s >= timeout_s:
            raise ValueError(
                f"router.max_wait_s + prefill_timeout_s are {wait_s:g} s of wall clock, "
                f"frontend.stream_timeout_s {timeout_s} s: the frontend would quarantine a "
                "waiting router; lower the first two"
            )
        if self.router.attachment == "relay" and self.decode_namespace == self.dynamo.namespace:
            raise ValueError(
                "router.decode_namespace is dynamo.namespace: the frontend would find the decode "
                "workers past the relay; give them a namespace of their own"
            )
        if self.decode.engine != "external" and self.decode.workers < 1:
            raise ValueError("decode.workers must be at least 1")
        if self.prefill.engine == "vllm" and self.time_scale != 1.0:
            raise ValueError("time_scale must be 1 with real engines")
        return self

    @property
    def prefill_namespace(self) -> str:
        """Where the prefill workers register: hidden from the frontend behind a router."""
        if self.router.attachment == "none":
            return self.dynamo.namespace
        return self.router.prefill_namespace or f"{self.dynamo.namespace}-prefill"

    @property
    def decode_namespace(self) -> str:
        """Where the decode workers register: hidden from the frontend behind a relay only."""
        if self.router.attachment != "relay":
            return self.dynamo.namespace
        return self.router.decode_namespace or f"{self.dynamo.namespace}-decode"

    @property
    def prefill_endpoint(self) -> str:
        """Where prefill workers serve, `namespace.component.endpoint`."""
        return f"{self.prefill_namespace}.prefill{self.dynamo.component_suffix}.generate"

    @property
    def decode_endpoint(self) -> str:
        """Where decode workers serve."""
        return f"{self.decode_namespace}.backend{self.dynamo.component_suffix}.generate"

    @property
    def router_endpoint(self) -> str:
        """Where the router serves: a broker as the prefill component that the frontend looks
        for, a relay as a component of its own."""
        component = "relay" if self.router.attachment == "relay" else "prefill"
        return f"{self.dynamo.namespace}.{component}{self.dynamo.component_suffix}.generate"


def parse_deployment(text: str, source: str) -> DeploymentConfig:
    """Parse a deployment file; `source` is named in the one line of a ConfigError."""
    return validated(DeploymentConfig, load_mapping(text, source), source)


def load_mapping(text: str, source: str) -> dict[str, Any]:
    """The keys of a YAML or JSON file. Raises ConfigError."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        what = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigError(f"{source}:{where} not YAML: {what}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: expected a mapping of keys, see dynamo_configs/")
    return raw


def validated(model: type[ModelT], raw: dict[str, Any], source: str) -> ModelT:
    """The model of these keys. Raises ConfigError that names the first wrong one."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{source}: {_first_line(error, model)}") from None


def _first_line(error: ValidationError, model: type[ConfigModel]) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {path!r}{_suggestion(first['loc'], model)}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _suggestion(path: tuple[Any, ...], model: Any) -> str:
    for part in path[:-1]:
        if isinstance(part, int):
            continue  # a place in a list: the model is that of its items already
        inner = getattr(model, "model_fields", None)
        if inner is None:  # below a mapping the keys are the operator's own
            model = get_args(model)[1]
        else:
            model = inner[part].annotation
            if get_origin(model) is list:
                model = get_args(model)[0]
    names = [field.alias or name for name, field in model.model_fields.items()]
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f", did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(names))}"
