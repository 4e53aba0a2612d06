"""The command line: thin verbs, and the only place where concretes meet."""
