"""From a checkpoint to a graph over one weights file: structure, passes, stored weights."""
