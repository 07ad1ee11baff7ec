"""vla/robots"""
