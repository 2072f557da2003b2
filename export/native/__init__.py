"""A pack's folder for the native library."""
