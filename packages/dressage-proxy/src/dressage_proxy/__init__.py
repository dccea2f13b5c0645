"""A recording model proxy: every agent API in front of SGLang, with the evidence of every token."""
