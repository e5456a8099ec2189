# SPDX-License-Identifier: Apache-2.0
"""Where measurements come from: scraping, Prometheus, the event plane, discovery, logs.

Owns: HTTP, files, subscriptions, their failures as values. Does not own: what is made of them
(controller.estimation). A source never raises for what a deployment does: what cannot be had is a
failed scrape, and says in one line why.
"""
