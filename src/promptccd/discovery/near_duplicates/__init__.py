"""Near-duplicate groups: copies, bursts and pans, which count once where the number of groups is estimated."""
