"""What runs inside a sandbox as process 1, and the frame format that both sides share.

The modules here are joined into one piece of bytecode and handed into each sandbox, so they import built-in
modules only: ``os``, ``json`` or ``asyncio`` would double the CPU time of a sandbox's start. They must run on
Python 3.8.
"""
