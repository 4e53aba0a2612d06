"""The champion rule: duels, the sanitizer check of the leader, and the energy of the elites."""
