"""Configuration (E20): what can be set, where each setting is declared, and how a configuration is read and shown.

Read it with `load_config`; every other component takes the `Config` (or the part of it that it needs) as a value.
"""

from minflinkd.config.load import ConfigError, Fault, load_config
from minflinkd.config.options import Config

__all__ = ["Config", "ConfigError", "Fault", "load_config"]
