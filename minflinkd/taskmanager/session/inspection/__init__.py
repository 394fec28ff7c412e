"""State that people look at: Spark reads a private copy of a checkpoint's files (E19c)."""
