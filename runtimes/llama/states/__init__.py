"""A conversation in llama.cpp: rows settled and pending, branches as sequences, snapshots of recurrent layers."""
