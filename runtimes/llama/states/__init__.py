"""A conversation's KV cache in llama.cpp: settled and pending rows, branches as sequences, recurrent snapshots."""
