"""Other people's tasks behind our `VecEnv`; each file is a suite, its name the key.

A task of a suite is called "SUITE/TASK", such as "metaworld/push-v3". A suite file says how its own
environment is made (`ENVIRONMENT`), which tasks it has and what its arm is; what drives the
simulator is the file of the same name in `sim/hosts`.
"""
