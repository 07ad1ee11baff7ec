"""Training and evaluation of process-reward critics."""
