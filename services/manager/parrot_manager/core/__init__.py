"""The manager's decisions: a deterministic state machine that does no I/O and reads no clock.

Each module imports only those before it: model, events, commands, graph, scheduler, state,
admission, turn, endings, calls, attempts, engines, sessions, machine.
"""
