"""`python -m minflinkd.config [yaml|markdown]` prints what config/minflinkd.yaml and docs/configuration.md must be."""

from __future__ import annotations

import sys

from minflinkd.config.render import reference_file, reference_page

_FORMS = {"yaml": reference_file, "markdown": reference_page}


def main(arguments: list[str]) -> int:
    form = _FORMS.get(arguments[0] if arguments else "yaml")
    if form is None or len(arguments) > 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    sys.stdout.write(form())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
