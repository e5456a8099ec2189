# SPDX-License-Identifier: Apache-2.0
"""The records that a simulation is made of: of a request, a worker, a run of KV blocks and so on.

Owns: the layout and what every field means. Does not own: which arrays of them there are
(state.py), how they are filled (build.py), how they change (the kernels).

Records instead of one array a field: an event touches many fields of few requests and workers,
so they should lie together. Index -1 is nobody. Times are seconds, lengths tokens, unless the
name says blocks.
"""

from __future__ import annotations

import numpy as np

from controller.routing.kernels.lanes import LANE_FIELDS, TASK_FIELDS

REQUEST = np.dtype(
    [
        # What is asked.
        ("arrival_s", "f8"),  # a follower's: when its predecessor had ended and the pause was over
        ("think_s", "f8"),
        ("error", "f8"),  # factor on every predicted time of this request
        ("prompt", "i4"),
        ("output", "i4"),
        ("urgency", "i4"),  # larger first
        ("session", "i4"),
        ("stream", "i4"),
        ("head", "i4"),  # row whose block ids name the start of this prompt
        ("follower", "i4"),  # row that the end of this one starts
        # What became of it.
        ("status", "i4"),
        ("place", "i4"),
        ("reason", "i4"),
        ("prefill_worker", "i4"),
        ("decode_worker", "i4"),
        ("hit_tokens", "i4"),  # found in the prefix cache where the prefill ran
        ("pulled_tokens", "i4"),
        ("sent_s", "f8"),  # left the router's queue
        ("started_s", "f8"),  # first step that computed a token of its prompt
        ("prefilled_s", "f8"),  # last prompt token computed on a prefill worker
        ("pulled_s", "f8"),  # its KV has arrived on the decode worker
        ("first_s", "f8"),  # first token
        ("finish_s", "f8"),
        # Where it stands in the engine that has it now.
        ("leg", "i4"),
        ("worker", "i4"),
        ("ask", "i4"),  # prompt tokens of this leg
        ("limit", "i4"),  # tokens this leg generates
        ("generated", "i4"),  # by this leg; while it decodes, see `end_step`
        ("target", "i4"),  # ask + generated when it was last admitted
        ("computed", "i4"),  # while it does not decode
        ("chunk", "i4"),  # prompt tokens in the step that was composed last
        ("under_way", "i4"),  # in the running step, if the next one was composed with it
        ("reads", "i4"),  # history that its prefill leg has still to read
        ("read_tokens", "i4"),  # history KV that was moved to the prefill worker
        ("chunk_cap", "i4"),  # most prompt tokens in a step of a local prefill, 0 = no cap
        ("chunks_done", "i4"),  # since its last admission
        ("plan", "i8"),  # chunk schedule of a local prefill, see chunks.py
        ("cached", "i4"),  # prefix hits of its first admission in this leg, -1 before
        ("blocks", "i4"),  # that it holds; while it decodes: at least these
        ("registered", "i4"),  # leading blocks that are held through references
        ("refs", "i4"),  # first of its references, last block first
        ("decoding", "i4"),  # takes one token a step
        ("skipped", "i4"),  # decodes, but the running step left it out
        ("priority", "i4"),  # lower first, vLLM's sense
        ("order", "i8"),  # arrival number at the engine
        ("joined", "i8"),  # admission number at the engine
        ("since", "i8"),  # the engine's `clock` when it had computed `computed`
        ("missed", "i8"),  # last decode step of the engine that left it out
        ("end_step", "i8"),  # engine step whose end brings its last token
        ("next", "i4"),  # in the one list that it is in: router queue, waiting, pulling, running
        ("prev", "i4"),
        ("peer_next", "i4"),  # in a second one: unfinished prefills, decode legs without a token
        ("peer_prev", "i4"),
        # At the router.
        *TASK_FIELDS,
        ("fly_next", "i4"),
        ("fly_prev", "i4"),
        ("sample_s", "f8"),  # TTFT as the router saw it
        ("sample_next", "i4"),
        ("sampled", "i4"),  # prefill worker in whose window that is, -1
        ("tries", "i4"),  # prefill workers that this leg has lost
        ("migrations", "i4"),
        ("reloaded", "i4"),  # a decode leg that lost its KV was tried once more
        # What it left on the prefill worker until the pull is over or the lease ends.
        ("release_s", "f8"),
        ("pin_next", "i4"),
        ("pin_prev", "i4"),
        ("pin_refs", "i4"),
        ("pin_blocks", "i4"),
        ("pin_registered", "i4"),
        ("pull_pending", "i4"),
        # Its tokens in stints, see STINT: the open one and the latest closed one.
        ("stint_s", "f8"),
        ("stint_step", "i8"),
        ("stints", "i4"),
    ],
    align=True,
)

WORKER = np.dtype(
    [
        # What it is.
        ("role", "i4"),
        ("life", "i4"),
        ("table", "i4"),
        ("block_size", "i4"),
        ("num_blocks", "i4"),
        ("max_tokens", "i4"),  # of one step
        ("max_seqs", "i4"),
        ("watermark", "i4"),
        ("prefix_cache", "i4"),
        ("charge_prefill", "i4"),
        ("prefill_first", "i4"),
        ("reserve_prompt", "i4"),
        ("lead", "i4"),  # 1: a step is composed when the one before it starts
        ("verified", "i4"),  # tokens that a decode computes in a step
        ("emit_num", "i4"),  # s decode steps bring s * emit_num // emit_den tokens to each decode
        ("emit_den", "i4"),
        ("in_flight_tokens", "i8"),  # bound of the router
        ("switching", "i4"),  # drains in order to start on the other side
        ("cold_start_s", "f8"),
        ("lease_s", "f8"),
        # The steps it is in: step j = 1..n takes first + slope*(j-1).
        ("busy", "i4"),
        ("ready", "i4"),
        ("n", "i8"),
        ("start_s", "f8"),
        ("first_s", "f8"),
        ("slope_s", "f8"),
        ("end_s", "f8"),
        ("ready_s", "f8"),
        ("grown", "i8"),  # of these steps' growth, already taken
        ("step", "i8"),  # decode steps before them; with a lead the first of them included
        ("clock", "i8"),  # tokens that so many decode steps bring
        ("in_batch", "i4"),  # decodes that take part
        ("partial", "i4"),  # some decodes do not
        ("budget", "i8"),  # tokens of the step that are not handed out
        ("chunk", "i8"),
        ("pairs", "f8"),
        ("batch_context", "i8"),  # KV tokens of the decodes that take part
        # With a lead: the step after the running one, and what the running one brings.
        ("ahead_batch", "i4"),
        ("ahead_partial", "i4"),
        ("ahead_context", "i8"),
        ("ahead_chunk", "i8"),
        ("ahead_pairs", "f8"),
        ("in_flight", "i8"),  # tokens for each of its decodes
        ("lost", "i8"),  # of these, of decodes that were preempted meanwhile
        # Running requests.
        ("decodes", "i4"),
        ("context", "i8"),  # KV tokens the decodes hold
        ("made", "i8"),  # tokens the decodes have generated
        ("changed", "i4"),  # decodes came or went since the last report
        ("news", "i4"),  # reports under way
        ("news_first", "i4"),
        ("running", "i4"),
        ("run_head", "i4"),
        ("run_tail", "i4"),
        ("joins", "i8"),
        ("last_join", "i8"),  # of a request that decodes
        ("prefills", "i4"),
        ("pre_head", "i4"),
        ("pre_tail", "i4"),
        ("fresh_head", "i4"),  # decode legs without a token
        ("fresh_tail", "i4"),
        ("ends", "i8"),  # where its heap of ends lies in `mem`
        ("residues", "i8"),  # where its counts of decodes by residue lie in `mem`
        ("spare", "i4"),  # decodes whose next block is there before its turn
        # Waiting, pulling, pinned.
        ("waiting", "i4"),
        ("wait_head", "i4"),
        ("wait_tail", "i4"),
        ("orders", "i8"),
        ("pulling", "i4"),
        ("pull_head", "i4"),
        ("pull_tail", "i4"),
        ("pin_head", "i4"),
        ("pin_tail", "i4"),
        ("orphan_head", "i4"),
        ("orphan_tail", "i4"),
        ("preempting", "i4"),  # the running composition has preempted
        ("recheck", "i4"),  # who waits may fit once cached blocks of its prompt are evicted
        # Blocks.
        ("free", "i4"),
        ("lru_head", "i4"),
        ("lru_tail", "i4"),
        # Links.
        ("egress_s", "f8"),
        ("ingress_s", "f8"),
        # Its queue at the router.
        *LANE_FIELDS,
        ("fly_head", "i4"),
        ("fly_tail", "i4"),
        ("sample_head", "i4"),
        ("sample_tail", "i4"),
        ("samples", "i4"),
        ("sample_sum_s", "f8"),
        # Window over its decode steps.
        ("log_head", "i4"),  # oldest entry in the window
        ("log_tail", "i4"),
        ("log_cut", "i8"),  # steps of it that have left
        # Counters.
        ("bound", "i8"),  # live requests bound here
        ("locals", "i8"),  # local prefills sent and not ended
        ("preemptions", "i8"),
        ("hit_tokens", "i8"),
        ("query_tokens", "i8"),
        ("prompt_tokens", "i8"),  # computed
        ("output_tokens", "i8"),
        ("busy_s", "f8"),
        ("compositions", "i8"),
    ],
    align=True,
)

HOLDING = np.dtype(
    [
        ("segment", "i4"),  # -1: blocks that nobody can find
        ("worker", "i4"),
        ("low", "i4"),  # blocks [low, high) of the segment
        ("high", "i4"),
        ("users", "i4"),
        ("prev", "i4"),  # free list, next to be evicted first
        ("next", "i4"),
        ("chain", "i4"),  # same bucket of the prefix table, registered later
        ("rest", "i4"),  # what was split off behind it
    ],
    align=True,
)

REFERENCE = np.dtype([("holding", "i4"), ("high", "i4"), ("next", "i4")], align=True)

STEPS = np.dtype(
    [
        ("start_s", "f8"),
        ("first_s", "f8"),
        ("slope_s", "f8"),
        ("step", "i8"),  # decode steps of this worker before these
        ("n", "i4"),
        ("batch", "i4"),
        ("worker", "i4"),
        ("next", "i4"),  # of the same worker
    ],
    align=True,
)

STINT = np.dtype(
    [
        ("token_s", "f8"),  # a token that came with the end of a prefill; NaN: none
        ("low", "i8"),  # then one at the end of each of these decode steps
        ("high", "i8"),
        ("worker", "i4"),
        ("before", "i4"),  # the stint before this one
    ],
    align=True,
)


ORPHAN = np.dtype(
    [
        ("release_s", "f8"),  # end of the lease
        ("refs", "i4"),
        ("blocks", "i4"),
        ("registered", "i4"),
        ("next", "i4"),
    ],
    align=True,
)

NEWS = np.dtype([("at", "i8"), ("made", "i8"), ("batch", "i8"), ("context", "i8")], align=True)

EVENT = np.dtype([("at", "i8"), ("worker", "i4"), ("kind", "i4")], align=True)
