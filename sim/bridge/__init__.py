"""Another interpreter's simulator, driven from this one: a child process and shared memory.

`client.Process` starts `worker.py` with any Python from 3.8 on that has numpy; the worker opens a
host, which is one file of `sim/hosts`, and serves it. Arrays lie in anonymous shared memory
that the system frees with the last of the two; small bounded JSON messages say what to do with
them. Nothing is pickled.
"""
