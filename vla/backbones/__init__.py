"""vla/backbones"""
