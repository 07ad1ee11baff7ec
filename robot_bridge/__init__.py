"""robot_bridge"""
