"""Engine selection: installed runtimes, their measured speeds, and the interface that a runtime implements."""
