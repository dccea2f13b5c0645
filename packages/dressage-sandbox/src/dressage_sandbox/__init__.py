"""Run untrusted agent code in bubblewrap sandboxes that leave nothing behind."""
