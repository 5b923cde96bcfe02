"""What people hand in: folders, archives and files, each judged by itself."""
