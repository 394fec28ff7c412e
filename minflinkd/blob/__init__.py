"""Distribution of code and other files that jobs need (blob.md): server, client, and the cache of a TaskManager."""
