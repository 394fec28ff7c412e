"""Configuration (E20): the options, their declarations, and how a configuration is read and shown.

`load_config` reads it. Every other component takes the `Config`, or the part of it that it needs, as a value.
"""

from minflinkd.config.load import ConfigError, Fault, load_config
from minflinkd.config.options import Config

__all__ = ["Config", "ConfigError", "Fault", "load_config"]
