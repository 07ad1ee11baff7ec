"""Scenes, tasks, worlds, rules and rendering of one MuJoCo simulation."""
