"""The manager's decisions: a deterministic state machine that does no I/O and reads no clock.

From the ground up: what things are (`criteria`, `conditions`, `shapes`, `model`), what is said (`events`,
`commands`, `submissions`), what is found out of that (`graph`, `prefixes`, `estimates`, `objectives`), who
goes where (`scheduling`), what is remembered (`state`), and a step in progress (`turn`). What is done in a
step: `queueing`, `endings`, `joining`, `attempts` with `retries`, `engines`, `sessions`, `restoring`,
`cancels`, `blocks`, `deducing`. `machine` takes one event after another; `admission` checks what clients ask.
"""
