"""A target on a server: this device drafts, the server's model verifies."""

from .remote_runtime import RemoteRuntime, remote_target

__all__ = ["RemoteRuntime", "remote_target"]
