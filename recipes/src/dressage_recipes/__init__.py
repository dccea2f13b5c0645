"""Dressage recipes: the whole loop on a laptop, and training recipes for clusters."""
