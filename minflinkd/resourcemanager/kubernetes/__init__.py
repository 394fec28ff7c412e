"""TaskManagers as Pods (R50): the client of the API server, the machine of Pods, and their launcher."""
