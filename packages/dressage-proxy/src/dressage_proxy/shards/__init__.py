"""Several processes behind one address: sessions by id, connections handed over, control requests spread."""
