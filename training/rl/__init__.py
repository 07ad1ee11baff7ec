"""Practice in simulation: episodes, rewards, returns, and where experience is kept."""
