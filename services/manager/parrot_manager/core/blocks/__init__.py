"""Parts of a graph that unfold as values come: maps, loops, selections.

A block waits for what it needs to know, then adds calls and variables of its own to the session: its
instances, ordinary in every way. What it knows comes from questions about values, which the shell
answers. All that a block is, is in the store; the rest is counted anew when a session comes back.
"""
