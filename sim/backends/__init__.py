"""Simulators behind one interface; each file is a backend, its name the key.

To add one, write `sim/backends/NAME.py` with a frozen `Config(PluginConfig)` that has
`workers: int` and `randomize: bool`, a class variable `live: bool` (whether there is one arm alone,
in real time) and a method `build(task, robot, num_envs)`. It returns a
`vla.contracts.protocols.VecEnv`. Episodes follow from (seed, index) alone: row i of E plays i,
i + E, i + 2E. Refuse what the simulator cannot do with a `ValueError`. Then
`sim.vec_env.make(task, num_envs, backend=NAME)` finds it.
"""
