"""Tasks, one file each; the file name is the task's name.

To add one, copy `reach.py`, the smallest, and change what it does:

1. `Config(PluginConfig)`: a frozen dataclass with a docstring under each field; `build(robot)`
   returns the task.
2. A class with the methods of `sim.core.task.Task`: scene, layout, a script for the expert, and in
   `variants` the bad behaviours that it can play; and the rules, success and oracle progress among
   them, as array code over n worlds.
3. Draw everything random from `world.rng` in `reset`; scale the layout by `robot.reach_m`.
4. Run `pytest tests/conformance/test_tasks.py` and `python -m benchmarks.sim.expert_study --task
NAME`. 5. If it needs memory, name it in `benchmarks.sim.leak_audit.TASKS` and run `python -m
benchmarks.sim.leak_audit`.
"""
