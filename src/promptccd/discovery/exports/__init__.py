"""Export the groups of a project: tables, folders of links, side files with keywords, pixels to publish."""
