"""The session child of a TaskManager: Python driver, JVM, running tasks, user code. Only this package uses pyspark."""
