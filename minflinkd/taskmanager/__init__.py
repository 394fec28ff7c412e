"""The TaskManager: a supervisor process that offers slots, and its session child with one SparkSession.

Everything here is the supervisor's, but for `session/`, which runs in the child and is the only code that imports
pyspark.
"""
