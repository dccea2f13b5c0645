"""Benchmarks: ``python -m benchmarks [NAME]`` runs all or one and writes benchmarks/out/NAME.json."""
