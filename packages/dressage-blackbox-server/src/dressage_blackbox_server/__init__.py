"""Drive a closed agent program, one session at a time, with idempotent turns."""
