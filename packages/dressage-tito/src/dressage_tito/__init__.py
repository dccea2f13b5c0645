"""Token in, token out: chat messages to token ids and back, without ever re-tokenising what a model sampled."""
