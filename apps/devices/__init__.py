"""The verb `devices`: engines and providers on this machine."""
