"""One file for each wire dialect, behind one base."""
