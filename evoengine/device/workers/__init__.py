"""Worker processes: a fork server, slots that replace crashed workers, and the checked format of their answers."""
