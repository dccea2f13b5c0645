"""Agent rollouts, whitebox and blackbox, that always end their sandbox lease."""
