"""Simulators in another interpreter: a child process, JSON messages and shared memory.

`client.Process` starts `worker.py` with any Python from 3.8 on that has numpy; the worker opens an
adapter, one file of `sim/adapters`, and serves it. Arrays lie in anonymous shared memory, which the
system frees with the last of the two processes. Nothing is pickled.
"""
