"""Bundles: what an Android or Snapdragon project takes of a pack, written, checked and tried out."""
