"""sim/tasks"""
