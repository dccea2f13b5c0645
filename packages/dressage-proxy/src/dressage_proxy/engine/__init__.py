"""Engines: the SGLang client, and a scripted engine that speaks the same contract for tests."""
