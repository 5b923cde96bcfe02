"""Group unlabelled images into known categories and new groups, and choose questions about the groups."""
