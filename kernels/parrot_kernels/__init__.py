"""Attention of a decode step over a forest of sequences: what several share is read once.

`plan` says what there is to do, as lists that all kernels read alike; `cpu` does it; `reference` says
what comes out.
"""
