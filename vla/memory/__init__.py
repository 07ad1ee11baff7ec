"""vla/memory"""
