"""A process-reward critic without torch: its graphs, who runs them, and the proof."""
