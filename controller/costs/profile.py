# SPDX-License-Identifier: Apache-2.0
"""Profile files: the coefficients of a cost model with their provenance.

Pure: parses text that somebody else has read. Errors name the field (`ProfileError`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.costs.model import AlphaBetaCost
from controller.errors import UserError

NonNegative = Field(ge=0, allow_inf_nan=False)
Positive = Field(gt=0, allow_inf_nan=False)


class ProfileError(UserError):
    """A profile that cannot be used; the message names the field and the fix."""


class Profile(BaseModel):
    """One profile file, schema `equilibrium.profile/1`; units are in the field names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal["equilibrium.profile/1"] = Field(alias="schema")
    name: str = Field(min_length=1)
    provenance: str = Field(min_length=1, description="where the numbers come from")
    license: str = Field(min_length=1)
    base_ms: float = Positive
    per_sequence_ms: float = NonNegative
    per_context_token_ms: float = NonNegative
    per_prefill_token_ms: float = Positive
    per_prefill_pair_ms: float = NonNegative
    max_chunk_tokens: int = Field(ge=1)
    kv_latency_ms: float = NonNegative
    kv_bytes_per_token: int = Field(ge=1)
    kv_bandwidth_gb_s: float = Positive

    def cost_model(self, slowdown: float = 1.0) -> AlphaBetaCost:
        """The cost model of this profile with compute times multiplied by `slowdown`."""
        scale = slowdown / 1e3
        return AlphaBetaCost(
            base_s=self.base_ms * scale,
            per_sequence_s=self.per_sequence_ms * scale,
            per_context_token_s=self.per_context_token_ms * scale,
            per_prefill_token_s=self.per_prefill_token_ms * scale,
            per_prefill_pair_s=self.per_prefill_pair_ms * scale,
            max_chunk_tokens=self.max_chunk_tokens,
            kv_latency_s=self.kv_latency_ms / 1e3,
            kv_bytes_per_token=self.kv_bytes_per_token,
            kv_bandwidth_bytes_s=self.kv_bandwidth_gb_s * 1e9,
        )


def parse_profile(text: str, source: str) -> Profile:
    """Parse a profile; `source` (a path or name) goes into the message of a ProfileError."""
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "file"
        raise ProfileError(f"profile {source}: {field}: {first['msg']}") from None
