"""Simulation: tasks, scripted experts, environments and simulator backends; knows no learning."""
