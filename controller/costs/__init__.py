# SPDX-License-Identifier: Apache-2.0
"""How long prefills, decode steps, mixed steps and KV transfers take. Pure; no user of it here."""
