"""The session child of a TaskManager: Python driver, JVM, running tasks, user code. The only part with pyspark."""
