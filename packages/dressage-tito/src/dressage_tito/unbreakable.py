"""An error between encoder and codec, apart so that catching it loads neither numpy nor tokenizers."""


class UnbreakableTokenError(Exception):
    """Plain text that the vocabulary can only write as a control id (internal: becomes a Refusal)."""
