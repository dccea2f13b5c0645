"""Token evidence, trajectory trees, segments and training samples for agent RL."""
