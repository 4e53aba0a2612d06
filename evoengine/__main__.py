"""``python -m evoengine``."""

from evoengine.cli.app import main

if __name__ == "__main__":
    main()
