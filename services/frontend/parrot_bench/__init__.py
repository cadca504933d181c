"""Benchmarks of whole applications: the same workloads on Parrot and on what a client can build itself."""
