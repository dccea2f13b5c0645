"""A CPU engine over transformers that speaks SGLang's /generate contract."""
