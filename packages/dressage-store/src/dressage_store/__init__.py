"""Durable turn logs and trajectories: memory and files backends behind one contract."""
