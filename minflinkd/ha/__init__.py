"""Who leads: the daemon that holds the lock of its state directory. Other daemons on the directory are refused."""
