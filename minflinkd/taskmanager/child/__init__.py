"""The session child as its supervisor sees it: the process, the protocol, and when it is started and replaced."""
