"""Suites of tasks as `VecEnv`; each file is a suite, its name the key.

A task of a suite is called "SUITE/TASK", such as "metaworld/push-v3". A suite file lists the
packages of its environment (`ENVIRONMENT`), its tasks and its arm; the file of the same name in
`sim/adapters` drives the simulator.
"""
