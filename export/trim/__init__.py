"""A draft's vocabulary becomes smaller: which ids are kept, what that is worth, and the heads that know them."""
