"""sim/assets"""
