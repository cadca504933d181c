"""Runs code that users send: in an interpreter without a way out, in processes of its own, within limits.

`execution` is what a program of code does on its engine, `slots` keeps the processes, `host` is what they
run: it has the interpreter, Monty, run each function in a process that is used once.
"""
