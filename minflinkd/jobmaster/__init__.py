"""One job's execution: execution graph, slot pool, restart strategy, and the driver that carries out decisions."""
