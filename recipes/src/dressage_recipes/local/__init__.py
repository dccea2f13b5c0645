"""The whole loop on one machine: an engine, a trainer, a tiny policy and the tasks that it learns."""
