"""What a TaskManager decides about its registration and its slots, and the driver that carries it out."""
