"""Nexmark: queries over an auction house, as jobs of minflinkd, beside plain PySpark."""
