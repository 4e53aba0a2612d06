"""``python -m evoengine``."""

if __name__ == "__main__":
    import sys

    try:
        from evoengine.cli.app import main
    except KeyboardInterrupt:  # before the command has its own handler
        sys.exit(130)
    main()
