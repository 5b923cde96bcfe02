"""The files that people hand in: folders, archives and single files, each file judged by itself."""
