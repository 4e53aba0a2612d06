"""The machine under a search: its faults, memory, files, folders of the user, temporary folders and signals."""
