"""Online RL: rollouts, rewards, experience, interventions, and the iterations of a run."""
