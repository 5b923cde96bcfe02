"""What carries the cells of a sweep: processes of this machine, jobs of Slurm, or tasks of a Ray cluster."""
