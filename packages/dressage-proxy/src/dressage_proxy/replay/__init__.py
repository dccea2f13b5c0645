"""Replay of recorded agent traffic through the real proxy: ``python -m dressage_proxy.replay [FOLDER]``."""
