"""The `uttershard` command: one file a subcommand, each imported when it is run, so that `--help` is quick."""

import sys

from uttershard.pipeline.errors import UttershardError


def main() -> None:
    """Run the command line; exit status 0 only when all is well."""
    try:
        # Inside, for the import takes as long as it takes somebody to think better of it.
        from .app import app

        app()
    except UttershardError as error:
        print(f"uttershard: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        print(f"uttershard: {str(stop) or 'stopped'}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `uttershard plan … | head`
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # of a path that was given, most likely: its message names it
        print(f"uttershard: {error}", file=sys.stderr)
        sys.exit(1)
