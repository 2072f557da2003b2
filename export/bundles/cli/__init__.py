"""The commands `package`, `lint` and `selftest`."""
