# SPDX-License-Identifier: Apache-2.0
"""Attention-FFN disaggregation (AFD): a decode pool split into attention and FFN workers.

Owns: per-layer costs (costs, measured), the split (pool), the micro-batch pipeline between the two
kinds of workers (pipeline), a run over a workload (run). Does not own: prefill, which is taken as
done by workers of its own, and routing.

Why the ratio of attention to FFN workers has an interior optimum, for a fixed number of GPUs and a
load that fills them:

- **Too few attention workers.** Only they hold KV, so they bound how many sequences run: each one
  brings its own sequences, and throughput is nearly proportional to their number. The FFN workers
  cannot make up for it. As replicas, each reads all weights once a layer whatever the batch, and
  below the batch where computing takes as long as that reading, another one saves no time. Spread
  over more workers the FFN does get faster, but then attention, whose time is the reading of each
  worker's own KV, is what a step takes, and the FFN workers idle.
- **Too few FFN workers.** All attention workers' tokens meet there. Beyond that batch the FFN's
  time grows with the tokens: every micro-batch waits for it, the attention workers idle, and the
  sequences that another attention worker brings only make each step longer, while the FFN worker
  it replaced is missed.

The optimum lies near the split where both take about the same time a layer. Long contexts, which
slow attention and thin out the batch, move it to more attention workers; short ones, or more KV
memory, to more FFN workers. Where one FFN worker can compute for all attention workers that there
are, the optimum is at that end, and a larger pool is needed to see both sides.
"""
