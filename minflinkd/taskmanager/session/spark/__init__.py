"""The SparkSession of the child, what is changed in Spark for it, and what failures of Spark mean."""
