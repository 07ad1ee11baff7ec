"""sim/backends"""
