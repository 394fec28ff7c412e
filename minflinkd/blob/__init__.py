"""Distribution of code and other files that jobs need: server, client, and the cache of a TaskManager."""
