"""The config file: settings for those that neither a flag nor the environment gives.

It is read only when a command needs such a setting, so a mistake in it is in nobody's way before.
"""

import configparser
import os
from typing import Dict, Optional

import attrs

from syncagent.surface.cli.options import WrongUse

__all__ = ["Settings", "config_file", "read_settings"]

SECTION = "syncagent"


@attrs.frozen(kw_only=True)
class Settings:
    """What the file says; None for what it doesn't say."""

    db: Optional[str] = None
    model: Optional[str] = None
    base_url: Optional[str] = None


def config_file() -> str:
    """The path of the config file, whether it is there or not."""
    import platformdirs

    return os.path.join(platformdirs.user_config_dir("syncagent", appauthor=False), "config.ini")


def read_settings() -> Settings:
    """The settings of the config file; all None if there is none. Raises `WrongUse`."""
    path = config_file()
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        with open(path, encoding="utf-8-sig") as file:
            parser.read_file(file, source=path)
    except FileNotFoundError:
        return Settings()
    except OSError as exc:
        raise WrongUse(f"{path} can't be read: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise WrongUse(f"{path} is no UTF-8 text") from exc
    except configparser.MissingSectionHeaderError as exc:
        text = f"line {exc.lineno} stands before any section: begin with [{SECTION}]"
        raise WrongUse(f"{path}: {text}") from exc
    except configparser.Error as exc:
        raise WrongUse(f"the config file is not as it must be: {' '.join(str(exc).split())}") from exc
    for section in parser.sections():
        if section != SECTION:
            raise WrongUse(f"{path}: there is no section [{section}]: settings stand in [{SECTION}]")
    return _settings(path, dict(parser[SECTION]) if parser.has_section(SECTION) else {})


def _settings(path: str, given: Dict[str, str]) -> Settings:
    known = {field.name.replace("_", "-"): field.name for field in attrs.fields(Settings)}
    for key in given:
        if key not in known:
            raise WrongUse(f"{path}: there is no setting {key!r}: there are {', '.join(known)}")
    values = {known[key]: value for key, value in given.items() if value}
    if "db" in values:
        values["db"] = os.path.expanduser(values["db"])
        if not os.path.isabs(values["db"]):
            raise WrongUse(f"{path}: db must be a whole path, or begin with ~/: {values['db']!r} is neither")
    return Settings(**values)
