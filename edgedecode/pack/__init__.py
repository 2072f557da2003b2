"""A pack on disk: manifest, files, locks, downloads, and the checks that run before an engine opens anything."""
