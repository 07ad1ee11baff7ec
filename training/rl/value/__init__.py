"""The asymmetric value function of action chunks, and the network that estimates its state."""
