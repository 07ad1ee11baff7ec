"""Simulators behind one interface; each file is a backend, its name the key.

To add one, write `sim/backends/NAME.py` with a frozen `Config(PluginConfig)`: fields
`workers: int` and `randomize: bool`, a class variable `is_realtime: bool` (True for a single arm
that runs in real time) and a method `build(task, robot, num_envs)` that returns a
`vla.contracts.protocols.VecEnv`. Episodes are a function of (seed, index): row i of E plays i,
i + E, i + 2E. Raise a `ValueError` for what the simulator cannot do. A simulator also
satisfies `HasPrivilegedState`. Then `sim.vec_env.make(task, num_envs, backend=NAME)` finds it.
"""
