"""A pack on disk: manifest, files, locks, downloads, and the gate that checks them before anything is opened."""
