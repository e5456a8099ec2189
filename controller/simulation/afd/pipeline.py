# SPDX-License-Identifier: Apache-2.0
"""The micro-batch ping-pong, layer by layer: when each layer of each micro-batch is done.

Owns: the recurrence of events and the steady step time. Does not own: which sequences are in a
micro-batch (run).

While the FFN workers compute layer l of micro-batch j, the attention workers compute attention of
micro-batch i. The law, applied in the order (layer, micro-batch), each stage in its turn:

1. an attention worker computes when it is free and its micro-batch is back from the FFN;
2. its tokens leave over its link, to all FFN workers at once, in equal parts;
3. each FFN worker receives over its own link, first come first served within a micro-batch;
4. the FFN workers compute when all attention workers' tokens are there (a barrier: the batch that
   makes them efficient is the sum over attention workers);
5. the results go back, worker after worker over the FFN links, and over each attention link.

A message takes the link's latency once and moves through both links at the same time. Links are
full duplex. FFN workers get equal work, so one of them stands for all. After the last layer the
attention worker computes the LM head in the turn in which the micro-batch's next step begins, so
steps follow each other without a barrier. Nothing is averaged: the times are those of these events.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from controller.costs.kernels import curve, step_s
from controller.simulation.afd.costs import AfdLaw
from controller.types import FloatArray, IntArray


class Stations(NamedTuple):
    """When each station is free next, and how long it was busy. A = attention workers.

    `back_s` has shape (micro-batches, A): when the micro-batch is at that worker, ready for its
    next stage. The other times have shape (A,); `ffn_s` holds the FFN worker's three times:
    computing, receiving, sending. `clock_s` is all of them in one array, of which the others are
    views. `busy_s` sums attention (over workers), FFN, and receiving at an FFN worker.
    """

    clock_s: FloatArray
    back_s: FloatArray
    attention_s: FloatArray
    sending_s: FloatArray
    receiving_s: FloatArray
    ffn_s: FloatArray
    busy_s: FloatArray


COMPUTING, RECEIVING, SENDING = 0, 1, 2


def new_stations(micro_batches: int, workers: int) -> Stations:
    """All free at time 0."""
    places = micro_batches * workers
    clock_s = np.zeros(places + 3 * workers + 3)
    attention, sending, receiving, ffn = np.split(
        clock_s[places:], [workers, 2 * workers, 3 * workers]
    )
    back = clock_s[:places].reshape(micro_batches, workers)
    return Stations(clock_s, back, attention, sending, receiving, ffn, np.zeros(3))


class LayerTimes(NamedTuple):
    """What the present micro-batches take: they keep their times for all layers of a step."""

    attention_s: FloatArray
    """(micro-batches, A)"""
    head_s: FloatArray
    """(micro-batches, A)"""
    ffn_s: FloatArray
    """(micro-batches,)"""


def new_times(micro_batches: int, workers: int) -> LayerTimes:
    """Nothing to do."""
    return LayerTimes(
        np.zeros((micro_batches, workers)),
        np.zeros((micro_batches, workers)),
        np.zeros(micro_batches),
    )


@njit(cache=True, nogil=True)
def set_times(law: AfdLaw, times: LayerTimes, k: int, batch: IntArray, context: IntArray) -> None:
    """Times of micro-batch k with `batch` sequences and `context` KV tokens a worker, (A,) each."""
    tokens = batch.sum()
    times.ffn_s[k] = curve(law.ffn_tokens, law.ffn_s, float(tokens))
    for a in range(batch.size):
        count, held = float(batch[a]), float(context[a])
        times.attention_s[k, a] = step_s(law.attention, count, held, 0.0, 0.0) if count else 0.0
        times.head_s[k, a] = curve(law.head_sequences, law.head_s, count) if count else 0.0


@njit(cache=True, nogil=True)
def advance_layer(
    law: AfdLaw,
    at: Stations,
    times: LayerTimes,
    k: int,
    batch: IntArray,
    scratch: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    """One layer of micro-batch k: the five stages of the module's law, in place.

    `batch` has shape (A,); `scratch` comes from `new_scratch`.
    """
    order, first_s, last_s = scratch
    if not _attend_and_send(law, at, times.attention_s[k], k, batch, first_s, last_s):
        return
    there_s = _gather(law, at, batch, order, first_s, last_s)
    done_s = max(at.ffn_s[COMPUTING], there_s) + times.ffn_s[k]
    at.ffn_s[COMPUTING] = done_s
    at.busy_s[1] += times.ffn_s[k]
    _scatter(law, at, k, batch, done_s)


@njit(cache=True, nogil=True)
def advance_layers(
    law: AfdLaw,
    at: Stations,
    times: LayerTimes,
    batch: IntArray,
    layers: int,
    scratch: tuple[IntArray, FloatArray, FloatArray],
) -> None:
    """`layers` layers of all micro-batches; `batch` has shape (micro-batches, A).

    The law is max-plus linear, and within a step every layer takes the same times. So once a layer
    has moved all stations in use by the same amount, every further one will: the rest is a product.
    """
    for layer in range(layers):
        before, worked = at.clock_s.copy(), at.busy_s.copy()
        for k in range(batch.shape[0]):
            advance_layer(law, at, times, k, batch[k], scratch)
        shift_s = _common_shift(before, at.clock_s)
        if shift_s > 0.0:
            left = layers - layer - 1
            for i in range(before.size):
                if at.clock_s[i] != before[i]:
                    at.clock_s[i] += left * shift_s
            at.busy_s[:] += left * (at.busy_s - worked)
            return


@njit(cache=True, nogil=True)
def _common_shift(before: FloatArray, after: FloatArray) -> float:
    """By how much all that moved at all has moved; 0 unless it is the same, up to rounding."""
    shift_s = 0.0
    for i in range(before.size):
        moved_s = after[i] - before[i]
        if moved_s == 0.0:
            continue
        if shift_s == 0.0:
            shift_s = moved_s
        elif abs(moved_s - shift_s) > 4e-16 * after[i]:
            return 0.0
    return shift_s


@njit(cache=True, nogil=True)
def new_scratch(workers: int) -> tuple[IntArray, FloatArray, FloatArray]:
    """An order of the workers that stays nearly sorted, and two times a worker: (A,) each."""
    return np.arange(workers), np.zeros(workers), np.zeros(workers)


@njit(cache=True, nogil=True)
def finish_step(at: Stations, times: LayerTimes, k: int, batch: IntArray) -> None:
    """The LM head: afterwards `back_s[k]` is when the tokens of this step are out."""
    for a in range(batch.size):
        if batch[a] > 0:
            took_s = times.head_s[k, a]
            done_s = max(at.attention_s[a], at.back_s[k, a]) + took_s
            at.attention_s[a] = done_s
            at.back_s[k, a] = done_s
            at.busy_s[0] += took_s


@njit(cache=True, nogil=True)
def _attend_and_send(
    law: AfdLaw,
    at: Stations,
    took_s: FloatArray,
    k: int,
    batch: IntArray,
    first_s: FloatArray,
    last_s: FloatArray,
) -> bool:
    """Stages 1 and 2; whether there is any token."""
    some = False
    for a in range(batch.size):
        if batch[a] == 0:
            continue
        done_s = max(at.attention_s[a], at.back_s[k, a]) + took_s[a]
        at.attention_s[a] = done_s
        at.busy_s[0] += took_s[a]
        start_s = max(at.sending_s[a], done_s)
        at.sending_s[a] = start_s + law.link_token_s * batch[a]
        first_s[a] = start_s + law.link_latency_s
        last_s[a] = at.sending_s[a] + law.link_latency_s
        some = True
    return some


@njit(cache=True, nogil=True)
def _gather(
    law: AfdLaw,
    at: Stations,
    batch: IntArray,
    order: IntArray,
    first_s: FloatArray,
    last_s: FloatArray,
) -> float:
    """Stage 3: when the last token of the micro-batch is at the FFN workers."""
    _sort_by(order, first_s)
    there_s = 0.0
    for i in range(order.size):
        a = order[i]
        if batch[a] > 0:
            moving_s = law.ffn_link_token_s * batch[a]
            at.ffn_s[RECEIVING] = max(at.ffn_s[RECEIVING], first_s[a]) + moving_s
            at.busy_s[2] += moving_s
            there_s = max(there_s, last_s[a], at.ffn_s[RECEIVING])
    return there_s


@njit(cache=True, nogil=True)
def _scatter(law: AfdLaw, at: Stations, k: int, batch: IntArray, done_s: float) -> None:
    """Stage 5."""
    sent_s = max(at.ffn_s[SENDING], done_s)
    for a in range(batch.size):
        if batch[a] > 0:
            first_s = sent_s + law.link_latency_s
            sent_s += law.ffn_link_token_s * batch[a]
            received_s = max(at.receiving_s[a], first_s) + law.link_token_s * batch[a]
            at.receiving_s[a] = received_s
            at.back_s[k, a] = max(received_s, sent_s + law.link_latency_s)
    at.ffn_s[SENDING] = sent_s


@njit(cache=True, nogil=True)
def _sort_by(order: IntArray, key: FloatArray) -> None:
    """Insertion sort, stable: the order hardly changes from layer to layer."""
    for i in range(1, order.size):
        item = order[i]
        j = i - 1
        while j >= 0 and key[order[j]] > key[item]:
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = item


@njit(cache=True, nogil=True)
def advance_steps(
    law: AfdLaw, at: Stations, times: LayerTimes, layers: int, batch: IntArray, steps: int
) -> FloatArray:
    """(steps,) when each decode step of unchanging micro-batches has ended on all workers.

    `batch` has shape (micro-batches, A).
    """
    micro_batches, workers = batch.shape
    scratch = new_scratch(workers)
    ends = np.zeros(steps)
    for step in range(steps + 1):
        for k in range(micro_batches):
            if step > 0:
                finish_step(at, times, k, batch[k])
                ends[step - 1] = max(ends[step - 1], at.back_s[k].max())
            if step < steps:
                advance_layer(law, at, times, k, batch[k], scratch)
        if step < steps:
            advance_layers(law, at, times, batch, layers - 1, scratch)
    return ends


def fixed_times(law: AfdLaw, batch: IntArray, context: IntArray) -> LayerTimes:
    """Times of unchanging micro-batches; `batch` and `context` have shape (micro-batches, A)."""
    times = new_times(*batch.shape)
    for k in range(len(batch)):
        set_times(law, times, k, batch[k], context[k])
    return times


def steady_step_s(law: AfdLaw, layers: int, batch: IntArray, context: IntArray) -> float:
    """Step time of unchanging micro-batches once the pipeline has filled: a sequence's TPOT.

    `batch` and `context` have shape (micro-batches, attention workers). The mean over 16 steps
    after 16: the recurrence is max-plus linear, so it becomes periodic, here within a few layers.
    """
    at, times = new_stations(*batch.shape), fixed_times(law, batch, context)
    # The last step of a call drains the pipeline: it is left out.
    ends = advance_steps(law, at, times, layers, batch, 34)
    return float(ends[32] - ends[16]) / 16
