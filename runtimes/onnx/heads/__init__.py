"""The smaller heads of a draft graph: which outputs a pass gives, and the vocabularies that they speak."""
