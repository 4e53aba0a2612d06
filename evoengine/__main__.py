"""``python -m evoengine``."""

if __name__ == "__main__":  # worker processes import this module, too
    from evoengine.cli.app import main

    main()
